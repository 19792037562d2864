#!/bin/sh
# Creates a key and a certificate that signs itself, for docker-compose.tls.yml. Clients verify the server by a copy of the
# certificate. Existing ones are kept.
#   docker/make_certificate.sh HOST
#
# Only the owner can open the folder; docker/make_secrets.sh says why the files in it are readable.
set -eu
host=${1:?name the host as other machines do: docker/make_certificate.sh HOST}
folder=$(dirname "$0")/secrets
mkdir -p "$folder"
chmod 700 "$folder"
if [ -s "$folder/tls_key" ] && [ -s "$folder/tls_certificate" ]; then
  echo "kept $folder/tls_certificate; remove it to create another"
  exit
fi
case $host in
  *:* | *.*[0-9]) kind=IP ;; # no domain ends with a digit
  *) kind=DNS ;;
esac
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -noenc -days 825 \
  -subj "/CN=$host" -addext "subjectAltName=$kind:$host" \
  -keyout "$folder/tls_key.new" -out "$folder/tls_certificate.new" 2>/dev/null
chmod 444 "$folder/tls_key.new" "$folder/tls_certificate.new"
mv "$folder/tls_key.new" "$folder/tls_key"
mv "$folder/tls_certificate.new" "$folder/tls_certificate"
echo "created $folder/tls_certificate for $host"
