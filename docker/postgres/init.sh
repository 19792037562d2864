#!/usr/bin/env bash
# Creates a database and a role for each server, without access to the other's. Runs once, while the volume is empty.
set -euo pipefail
secrets=${SECRETS:-/run/secrets}
for name in mlflow prefect; do
  export PASSWORD_FILE=$secrets/${name}_db_password
  test -s "$PASSWORD_FILE"
  # psql reads the password from the file, because other users can see a command line.
  psql --no-psqlrc --quiet --set ON_ERROR_STOP=1 --set "name=$name" --username "$POSTGRES_USER" --dbname postgres <<'SQL'
\set password `cat "$PASSWORD_FILE"`
CREATE ROLE :"name" LOGIN PASSWORD :'password';
CREATE DATABASE :"name" OWNER :"name";
REVOKE ALL ON DATABASE :"name" FROM PUBLIC;
SQL
done
