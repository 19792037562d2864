#!/bin/sh
# Runs a command with passwords from files: where NAME_FILE names a file, NAME is set to what the file contains. So no
# password is part of an address that a log, an error message, the process list or `docker inspect` could show.
set -eu
for name in PGPASSWORD MLFLOW_AUTH_ADMIN_PASSWORD MLFLOW_FLASK_SERVER_SECRET_KEY MLFLOW_TRACKING_PASSWORD \
  PREFECT_SERVER_API_AUTH_STRING PREFECT_API_AUTH_STRING AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY; do
  eval "file=\${${name}_FILE:-}"
  [ -n "$file" ] || continue
  value=$(cat "$file")
  export "$name=$value"
done
exec "$@"
