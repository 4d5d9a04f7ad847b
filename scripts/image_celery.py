"""docker-compose.yaml's services with Airflow's CeleryExecutor: a broker (Redis) and a worker more.

The provider is installed over our image, as a user would install it; Redis is Debian's.
"""

from __future__ import annotations

import secrets
from copy import deepcopy

from compose_file import Service

PROVIDER = "apache-airflow-providers-celery==3.26.0"
OURS = f"""FROM ours AS celery
USER root
COPY requirements.lock /tmp/
RUN pip install --no-cache-dir --quiet "{PROVIDER}" --constraint /tmp/requirements.lock
USER hindcast
"""
REDIS = """FROM base AS redis
RUN apt-get update -qq && apt-get install -qq --yes --no-install-recommends redis-server && rm -rf /var/lib/apt/lists/*
"""

WORKER_CHECK = "celery --app airflow.providers.celery.executors.celery_executor.app inspect ping -d celery@$(hostname)"


def add_celery(services: dict[str, Service]) -> dict[str, Service]:
    """Return the services with the executor changed, and `redis` and `airflow-worker` added."""
    password = secrets.token_hex(16)
    scheduler = services["airflow-scheduler"]
    database = scheduler["environment"]["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"]
    more = {
        "AIRFLOW__CORE__EXECUTOR": "CeleryExecutor",
        "AIRFLOW__CELERY__BROKER_URL": f"redis://:{password}@redis:6379/0",
        "AIRFLOW__CELERY__RESULT_BACKEND": f"db+{database}",
        "AIRFLOW__CELERY__WORKER_CONCURRENCY": "4",
    }
    redis = {
        "user": "redis",
        "command": ["redis-server", "--bind", "0.0.0.0", "--requirepass", password, "--save", ""],  # noqa: S104  # its own network
        "environment": {"REDISCLI_AUTH": password},
        "deploy": services["postgres"]["deploy"],
        "healthcheck": {"test": ["CMD", "redis-cli", "ping"]},
    }
    worker = deepcopy(scheduler) | {
        "command": ["airflow", "celery", "worker", "--skip-serve-logs"],
        "healthcheck": {"test": ["CMD-SHELL", WORKER_CHECK]},
    }
    changed = {"redis": redis}
    for name, service in services.items():
        changed[name] = service
        if name.startswith("airflow-"):
            changed[name] = service | {"environment": service["environment"] | more}
        if name == "airflow-scheduler":
            changed["airflow-worker"] = worker | {"environment": service["environment"] | more}
    return changed
