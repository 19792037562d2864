#!/bin/sh
# Restores a backup to services of docker-compose.yml that nobody has used, before `docker compose up`.
#   docker/restore.sh FOLDER
#
# Everything in the backup is verified before anything is written, and nothing is ever replaced: both databases and the
# place of MLflow's artifacts must be empty. MLflow keeps its users' passwords in its database, so docker/secrets needs the
# mlflow_password that was there before.
set -eu
umask 077
fail() {
  echo "$1" >&2
  exit 2
}
folder=${1:?name the backup: docker/restore.sh FOLDER}
folder=$(cd "$folder" && pwd)
cd "$(dirname "$0")/.."

for name in backup.json prefect.pgdump mlflow.pgdump SHA256SUMS; do
  [ -f "$folder/$name" ] || fail "$folder has no $name, expected a complete backup of PostgreSQL"
done
grep -q '"format": 1,' "$folder/backup.json" || fail "$folder/backup.json has another format than 1; use a newer version"
odd=$(find "$folder" ! -type d ! -type f)
[ -z "$odd" ] || fail "this is a link or not a regular file, which no backup has: $odd"
there=$(cd "$folder" && find . -type f ! -path ./SHA256SUMS | sed 's,^\./,,' | sort)
listed=$(sed 's/^[0-9a-f]*  //' "$folder/SHA256SUMS" | sort)
[ "$there" = "$listed" ] || fail "files of $folder are missing or were added since SHA256SUMS was written: the backup is damaged"
(cd "$folder" && sha256sum --check --quiet SHA256SUMS) || fail "$folder has changed since it was written: the backup is damaged"

# Runs a program in PostgreSQL's container as the owner of a database; its password is no part of a command line.
as_owner() {
  name=$1
  shift
  docker compose exec -T --env "PGPASSWORD_FILE=/run/secrets/${name}_db_password" --env PGHOST=127.0.0.1 --env "PGUSER=$name" \
    postgres with_password.sh "$@" "--dbname=$name"
}

docker compose up --detach --wait postgres
for name in prefect mlflow; do
  tables=$(as_owner $name psql --quiet --tuples-only --no-align \
    --command="SELECT count(*) FROM pg_tables WHERE schemaname = 'public'" </dev/null)
  [ "$tables" = 0 ] || fail "the database $name is not empty, expected new services; if nobody needs what they have, \
\`docker compose down --volumes\` removes it"
done

# Artifacts first, so that no row names a file that is not there. They are verified again where they are.
[ -d "$folder/artifacts" ] && artifacts=artifacts || artifacts=
tar -C "$folder" -cf - SHA256SUMS $artifacts | docker compose run --rm --no-deps -T --entrypoint sh mlflow -c '
set -eu
place=$MLFLOW_ARTIFACTS_DESTINATION
case $place in
  *:*)
    [ -z "$1" ] || { echo "the services keep artifacts in $place, expected a folder, as in the backup" >&2; exit 2; }
    exit
    ;;
esac
[ -n "$1" ] || { echo "the artifacts were in a bucket; name it by MLFLOW_ARTIFACTS, as before" >&2; exit 2; }
[ -z "$(ls -A "$place" 2>/dev/null)" ] || { echo "$place is not empty, expected new services" >&2; exit 2; }
rm -rf "$place.incomplete"
mkdir "$place.incomplete"
cd "$place.incomplete"
tar -xf -
sed -n "/^[0-9a-f]*  artifacts\//p" SHA256SUMS >sums
[ ! -s sums ] || sha256sum --check --quiet sums
sync
[ ! -e "$place" ] || rmdir "$place"
mv artifacts "$place"
rm -r "$place.incomplete"
' sh "$artifacts"

for name in mlflow prefect; do
  as_owner $name pg_restore --no-owner --no-privileges --single-transaction --exit-on-error <"$folder/$name.pgdump"
done
echo "restored from $folder; \`docker compose up --detach\` starts the services"
