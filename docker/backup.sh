#!/bin/sh
# Backs up the services of docker-compose.yml, while they run, to a new folder: both databases and MLflow's artifacts.
#   docker/backup.sh FOLDER
#
# The folder appears when it is complete, and is laid out as by `rl-training backup`. Databases are dumped before artifacts
# are copied, and Prefect's before MLflow's, so that no row names a file or a run that is missing. A bucket is not copied.
set -eu
umask 077
fail() {
  echo "$1" >&2
  exit 2
}
folder=${1:?name a new folder: docker/backup.sh FOLDER}
case $folder in /*) ;; *) folder=$PWD/$folder ;; esac
cd "$(dirname "$0")/.."
[ ! -e "$folder" ] || fail "$folder exists, expected a new folder; a backup never replaces another"

staged=$(dirname "$folder")/.incomplete-$$-$(basename "$folder")
mkdir -p "$(dirname "$folder")"
mkdir "$staged"
trap 'rm -rf "$staged"' EXIT
trap 'exit 130' HUP INT TERM

for name in prefect mlflow; do
  # Comments on extensions, and owners, could only be restored by the database's administrator.
  docker compose exec -T --env "PGPASSWORD_FILE=/run/secrets/${name}_db_password" postgres \
    with_password.sh pg_dump --host=127.0.0.1 --username=$name --format=custom --no-owner --no-privileges --no-comments $name \
    </dev/null >"$staged/$name.pgdump"
done

artifacts=$(docker compose exec -T mlflow printenv MLFLOW_ARTIFACTS_DESTINATION </dev/null)
case $artifacts in
  *:*) echo "the artifacts are in $artifacts and are not copied; a bucket has versions and replicas of its own" >&2 ;;
  *)
    mkdir "$staged/artifacts"
    # tar's status 1 says that a file changed or went meanwhile; no row of the dumps names such a file.
    { docker compose exec -T mlflow sh -c 'mkdir -p "$1" && { tar -C "$1" -cf - . || [ $? -eq 1 ]; }' sh "$artifacts" \
      </dev/null || : >"$staged/failed"; } | tar -C "$staged/artifacts" --no-same-owner --no-same-permissions -xf -
    [ ! -e "$staged/failed" ] || fail "the artifacts in $artifacts can't be read"
    ;;
esac
odd=$(find "$staged" ! -type d ! -type f -o -name '*[\\[:cntrl:]]*')
[ -z "$odd" ] || fail "this is a link, not a regular file, or has an odd name, which no backup has: $odd"

docker compose exec -T mlflow python -c '
import json
from datetime import UTC, datetime
from importlib.metadata import version
versions = {name: version(name) for name in ("mlflow", "prefect")}
created = datetime.now(UTC).isoformat(timespec="seconds")
print(json.dumps({"format": 1, "created": created, "versions": versions, "dumps": ["prefect.pgdump", "mlflow.pgdump"]}))
' </dev/null >"$staged/backup.json"
(cd "$staged" && find * -type f ! -path SHA256SUMS -exec sha256sum {} + >SHA256SUMS)
sync
[ ! -e "$folder" ] || fail "$folder exists by now, expected a new folder; a backup never replaces another"
mv "$staged" "$folder"
echo "backed up to $folder"
