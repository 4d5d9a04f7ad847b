# One image for Airflow's parts and Spark's, from the same pins as `make setup`.
FROM python:3.11.13-slim-bookworm

RUN apt-get update \
 && apt-get install --yes --no-install-recommends openjdk-17-jre-headless procps tini \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --create-home --uid 50000 hindcast

WORKDIR /opt/hindcast
RUN python -m venv .venv
ENV PATH=/opt/hindcast/.venv/bin:$PATH

COPY requirements.txt requirements.lock ./
RUN pip install --no-cache-dir --requirement requirements.txt --constraint requirements.lock

COPY ivy.xml ivysettings.xml ./
COPY scripts scripts
COPY jobs/hindcast/__init__.py jobs/hindcast/__init__.py
COPY jobs/hindcast/setup jobs/hindcast/setup
RUN cd scripts \
 && XDG_CACHE_HOME=/tmp/cache python -c "import os, pathlib, setup_parts as parts; \
place = parts.Place(pathlib.Path('/opt/hindcast'), dict(os.environ)); \
parts.make_java(place); parts.make_jars(place)" \
 && rm -rf /tmp/cache

COPY . .
RUN pip install --no-cache-dir --no-deps --editable . \
 && mkdir -p .venv/spark-conf var objects \
 && XDG_CACHE_HOME=/tmp/cache HINDCAST_SPARK_MEMORY=2g python scripts/object_store.py \
 && rm -rf /tmp/cache && chown -R hindcast var objects

USER hindcast
ENV PYSPARK_PYTHON=/opt/hindcast/.venv/bin/python TZ=UTC GX_ANALYTICS_ENABLED=false
ENTRYPOINT ["tini", "--"]
CMD ["hindcast", "--help"]
