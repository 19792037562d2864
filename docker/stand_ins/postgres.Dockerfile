# Replaces the official PostgreSQL image if no image registry can be reached: Debian's PostgreSQL 15.
ARG DEBIAN_IMAGE
FROM ${DEBIAN_IMAGE}
RUN groupadd --system --gid=999 postgres \
 && useradd --system --gid=postgres --uid=999 --home-dir=/var/lib/postgresql --shell=/bin/bash postgres \
 && install --directory --owner=postgres --group=postgres --mode=1777 /var/lib/postgresql
RUN apt-get update \
 && apt-get install --yes --no-install-recommends postgresql-common \
 && sed -ri 's/#(create_main_cluster) .*$/\1 = false/' /etc/postgresql-common/createcluster.conf \
 && apt-get install --yes --no-install-recommends postgresql-15 \
 && rm -rf /var/lib/apt/lists/* \
 && install --directory --owner=postgres --group=postgres --mode=1777 /var/lib/postgresql/data \
 && install --directory --owner=postgres --group=postgres --mode=3777 /var/run/postgresql \
 && mkdir /docker-entrypoint-initdb.d \
 && sed -ri "s!^#?(listen_addresses)\s*=\s*\S+.*!\1 = '*'!" /usr/share/postgresql/15/postgresql.conf.sample
ENV LANG=C.UTF-8 \
    PATH=$PATH:/usr/lib/postgresql/15/bin \
    PGDATA=/var/lib/postgresql/data
VOLUME /var/lib/postgresql/data
COPY --chmod=755 docker-entrypoint.sh /usr/local/bin/
ENTRYPOINT ["docker-entrypoint.sh"]
STOPSIGNAL SIGINT
CMD ["postgres"]
