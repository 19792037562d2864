#!/bin/sh
# Runs a command with the database's password from a file: libpq and asyncpg find it in PGPASSWORD, so it is in no
# address, and with that in no log, error message, list of processes or `docker inspect`.
set -eu
PGPASSWORD=$(cat "$PGPASSWORD_FILE")
export PGPASSWORD
exec "$@"
