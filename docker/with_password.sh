#!/bin/sh
# Runs a command with the database password from a file. libpq and asyncpg read it from PGPASSWORD, so it is not part of
# an address that a log, an error message, the process list or `docker inspect` could show.
set -eu
PGPASSWORD=$(cat "$PGPASSWORD_FILE")
export PGPASSWORD
exec "$@"
