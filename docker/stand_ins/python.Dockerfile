# Replaces the official Python image if no image registry can be reached: Debian's Python 3.11. `make compose-test` creates
# the base image and copies this machine's certificates, pip settings and wheels into `settings/`.
ARG DEBIAN_IMAGE
FROM ${DEBIAN_IMAGE}
RUN apt-get update \
 && apt-get install --yes --no-install-recommends python3.11 python3.11-venv \
 && rm -rf /var/lib/apt/lists/* \
 && ln -s /usr/bin/python3.11 /usr/local/bin/python \
 && ln -s /usr/bin/python3.11 /usr/local/bin/python3
COPY settings/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY settings/pip.conf /etc/pip.conf
COPY settings/wheels /opt/wheels
ENV LANG=C.UTF-8
CMD ["python3"]
