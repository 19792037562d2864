#!/usr/bin/env bash
# The parts of the official image's entrypoint that docker-compose.yml needs.
set -Eeo pipefail
user=${POSTGRES_USER:-postgres}
if [ "$1" = postgres ] && [ ! -s "$PGDATA/PG_VERSION" ]; then
  mkdir -p "$PGDATA"
  chmod 00700 "$PGDATA" || :
  password=${POSTGRES_PASSWORD:-}
  [ -n "${POSTGRES_PASSWORD_FILE:-}" ] && password=$(<"$POSTGRES_PASSWORD_FILE")
  [ -n "$password" ] || { echo "no password" >&2; exit 1; }
  eval 'initdb --username="$user" --pwfile=<(printf "%s\n" "$password") '"${POSTGRES_INITDB_ARGS:-}"
  # As the official image does: every TCP connection needs the password.
  printf '\nhost all all all %s\n' "$(postgres -C password_encryption)" >>"$PGDATA/pg_hba.conf"
  export PGPASSWORD=$password
  pg_ctl -D "$PGDATA" -o "-c listen_addresses='' -p 5432" -w start
  for file in /docker-entrypoint-initdb.d/*.sh; do
    echo "$0: running $file"
    POSTGRES_USER=$user "$file"
  done
  pg_ctl -D "$PGDATA" -m fast -w stop
  unset PGPASSWORD
  echo 'PostgreSQL init process complete; ready for start up.'
fi
exec "$@"
