#!/bin/sh
# Makes the passwords that docker-compose.yml reads, once: those that are there stay, since a database knows them.
#
# The folder is the owner's alone. The files in it can be read by all, because the containers, which are not root and no
# user of this machine, see each file by itself.
set -eu
folder=$(dirname "$0")/secrets
mkdir -p "$folder"
chmod 700 "$folder"
for name in postgres_password mlflow_db_password prefect_db_password; do
  file=$folder/$name
  [ -s "$file" ] && continue
  od -An -N32 -tx1 /dev/urandom | tr -d ' \n' >"$file.new"
  chmod 444 "$file.new"
  mv "$file.new" "$file" # complete and readable, or not there
  echo "made $file"
done
