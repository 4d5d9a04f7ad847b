# One image for Airflow's parts and Spark's, from the same pins as `make setup`.
FROM python:3.11.13-slim-bookworm AS build

# A Java of only the modules that Spark, Delta and Kafka's clients use. Debian's package needs the folder of man pages
RUN mkdir -p /usr/share/man/man1 \
 && apt-get update \
 && apt-get install --yes --no-install-recommends binutils openjdk-17-jdk-headless \
 && rm -rf /var/lib/apt/lists/* \
 && jlink --output /opt/java --compress=2 --no-header-files --no-man-pages --add-modules java.se,jdk.charsets,jdk.crypto.ec,\
jdk.httpserver,jdk.incubator.vector,jdk.jcmd,jdk.localedata,jdk.management.agent,jdk.naming.dns,jdk.net,jdk.nio.mapmode,\
jdk.security.auth,jdk.security.jgss,jdk.unsupported,jdk.zipfs \
 && cp --dereference --remove-destination /etc/ssl/certs/java/cacerts /opt/java/lib/security/cacerts \
 && /opt/java/bin/java -Xshare:dump > /dev/null
ENV JAVA_HOME=/opt/java

WORKDIR /opt/hindcast
RUN python -m venv --without-pip .venv
COPY requirements.txt requirements.lock ./
# Tests of packages, and symbols that only debuggers read, are no part of the image
RUN pip --python .venv/bin/python install --no-cache-dir --use-pep517 \
  --requirement requirements.txt --constraint requirements.lock \
 && find .venv -type d -name tests -path '*/site-packages/*' -prune -exec rm -rf {} + \
 && find .venv -name '*.so' -not -path '*.libs/*' -exec strip --strip-unneeded {} +

COPY ivy.xml ivysettings.xml ./
COPY scripts scripts
COPY jobs/hindcast/__init__.py jobs/hindcast/__init__.py
COPY jobs/hindcast/setup jobs/hindcast/setup
RUN cd scripts \
 && XDG_CACHE_HOME=/tmp/cache ../.venv/bin/python -c "import os, pathlib, setup_parts as parts; \
place = parts.Place(pathlib.Path('/opt/hindcast'), dict(os.environ)); \
parts.make_java(place); parts.retrieve(place, place.jars, 'spark')"

COPY pyproject.toml README.md LICENSE ./
COPY jobs jobs
COPY tools tools
RUN pip --python .venv/bin/python install --no-cache-dir --no-deps --editable . \
 && mkdir .venv/spark-conf \
 && XDG_CACHE_HOME=/tmp/cache HINDCAST_SPARK_MEMORY=2g .venv/bin/python scripts/object_store.py --without-archive \
 && rm -rf .venv/compiler .venv/stamps \
 && python -m compileall -q jobs tools


FROM python:3.11.13-slim-bookworm

RUN apt-get update \
 && apt-get install --yes --no-install-recommends procps tini \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --create-home --uid 50000 hindcast

WORKDIR /opt/hindcast
COPY --from=build /opt/java /opt/java
COPY --from=build /opt/hindcast/.venv .venv
COPY --from=build /opt/hindcast/jobs jobs
COPY --from=build /opt/hindcast/tools tools
COPY pyproject.toml ivy.xml ivysettings.xml ./
COPY dags dags
COPY plugins plugins
COPY schemas schemas
RUN mkdir var objects && chown hindcast var objects

USER hindcast
ENV PATH=/opt/hindcast/.venv/bin:/opt/java/bin:$PATH JAVA_HOME=/opt/java PYSPARK_PYTHON=/opt/hindcast/.venv/bin/python
ENV PIP_PYTHON=/opt/hindcast/.venv/bin/python TZ=UTC GX_ANALYTICS_ENABLED=false
ENTRYPOINT ["tini", "--"]
CMD ["hindcast", "--help"]
