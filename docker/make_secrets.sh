#!/bin/sh
# Creates the passwords that docker-compose.yml needs. Existing ones are kept, because the databases use them.
#
# Only the owner can open the folder. The files in it are readable by everyone, because the containers mount each file
# separately and run as users that do not exist on this machine.
set -eu
folder=$(dirname "$0")/secrets
mkdir -p "$folder"
chmod 700 "$folder"
for name in postgres_password mlflow_db_password prefect_db_password mlflow_password mlflow_session_key prefect_login; do
  file=$folder/$name
  [ -s "$file" ] && continue
  {
    [ $name != prefect_login ] || printf 'owner:'
    od -An -N32 -tx1 /dev/urandom | tr -d ' \n'
  } >"$file.new"
  chmod 444 "$file.new"
  mv "$file.new" "$file" # atomic: the file is complete or does not exist
  echo "created $file"
done
