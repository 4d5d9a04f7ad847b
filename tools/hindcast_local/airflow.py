"""Airflow with its embedded defaults: SQLite, LocalExecutor, reachable from this machine only.

`Settings.users` says who may log in; their passwords are generated here.

Its four parts run as separate processes, as under `airflow standalone`, but they start at the same time, and none is
orphaned when another one dies.
"""

from __future__ import annotations

import base64
import json
import os
import secrets
import sqlite3
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import closing, suppress
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from hindcast.common import private_files, session
from hindcast.common.errors import PlatformError
from hindcast.common.settings import Settings
from hindcast.common.spark_connect import TOKEN_FILE, token_path
from hindcast_local import ports, process
from hindcast_local.api import AirflowClient, refuse_foreign

PARTS = {
    "airflow-api-server": ("api-server",),
    "airflow-scheduler": ("scheduler", "--skip-serve-logs"),
    "airflow-dag-processor": ("dag-processor",),
    "airflow-triggerer": ("triggerer", "--skip-serve-logs"),
}
"""Name and command of each part. Their logs are read from disk, so nothing serves them."""

OBSERVABILITY_PREFIXES = ("AIRFLOW__METRICS__", "AIRFLOW__OPENLINEAGE__")
"""The prefixes of Airflow's own variables that are passed on unchanged: where metrics and lineage go."""


def start_part(settings: Settings, name: str) -> process.Process:
    """Start one of `PARTS` and return its process; `migrate_database` comes before, `wait_for_part` after."""
    return process.start_process(
        name,
        base_url(settings),
        [_airflow_command(), *PARTS[name]],
        log=settings.logs / f"{name}.log",
        env=build_environment(settings),
        cwd=_home_folder(settings),
    )


def migrate_database(settings: Settings) -> None:
    """Create Airflow's database, or migrate it to this version of Airflow; quick if there is nothing to do.

    A new database is a copy of an empty one, which is kept from the first time.
    """
    home, release = _home_folder(settings), version("apache-airflow")
    marker, database = home / "migrated", home / "airflow.db"
    if database.exists() and marker.exists() and marker.read_text(encoding="utf-8") == release:
        return
    home.mkdir(parents=True, exist_ok=True)
    empty, is_new = session.venv_folder() / "airflow" / f"{release}.db", not database.exists()
    if is_new and empty.exists():
        _copy_database(empty, database)
    else:
        _run_migrations(settings, database)
        if is_new:
            empty.parent.mkdir(exist_ok=True)
            _copy_database(database, empty)
    marker.write_text(release, encoding="utf-8")


def _run_migrations(settings: Settings, database: Path) -> None:
    """Run Airflow's own migrations; PlatformError if they fail."""
    log = settings.logs / "airflow-migrate.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        code = subprocess.run(
            [_airflow_command(), "db", "migrate"],
            env=build_environment(settings),
            cwd=_home_folder(settings),
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        ).returncode
    if code != 0:
        raise PlatformError("Airflow's database cannot be created", where=str(database), fix=f"read the log: {log}")


def wait_for_part(started: process.Process, since: datetime, seconds: float = 120) -> None:
    """Return when Airflow's API server answers and reports that the part was healthy after `since`.

    PlatformError if another user of this machine has its port: tasks would send their tokens there.
    """
    ports.wait_until_ready(started, lambda: _is_healthy(started, since), seconds)


def api(settings: Settings) -> AirflowClient:
    """Return a client of the running Airflow's REST API, for an administrator."""
    admin = next(user.partition(":")[0] for user in settings.users.split(",") if user.endswith(":admin"))
    return AirflowClient(base_url(settings), (admin, ensure_passwords(settings)[admin]))


def ensure_passwords(settings: Settings) -> dict[str, str]:
    """Return the password of each of `Settings.users`; generated once, readable by the owner of the file only."""
    return _ensure_secrets(
        passwords_path(settings), lambda: {name: secrets.token_urlsafe(12) for name in list_users(settings)}
    )


def list_users(settings: Settings) -> list[str]:
    """Return the names of `Settings.users`."""
    return [user.partition(":")[0] for user in settings.users.split(",")]


def passwords_path(settings: Settings) -> Path:
    """Return the path of the file with the passwords (`ensure_passwords`)."""
    return _home_folder(settings) / "passwords.json"


def find_import_errors(settings: Settings, seconds: float = 30) -> list[str]:
    """Return the errors of DAG files that cannot be loaded, once Airflow has read one; empty after `seconds`."""
    end, client = time.monotonic() + seconds, api(settings)
    while (errors := client.find_import_errors()) is None and time.monotonic() < end:
        time.sleep(0.3)
    return errors or []


def base_url(settings: Settings) -> str:
    """Return the address of the UI."""
    return f"http://{ports.HOST}:{settings.airflow_port}"


def build_environment(settings: Settings) -> dict[str, str]:
    """Return the environment of Airflow and its tasks: Airflow's options, connections, Hindcast's settings."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name.startswith(OBSERVABILITY_PREFIXES)
        or not name.startswith(("AIRFLOW", "SPARK_", "PYSPARK_", "PYTHONPATH"))
    }
    spark = {
        "conn_type": "spark_connect",
        "host": ports.HOST,
        "port": settings.spark_port,
        "extra": {TOKEN_FILE: str(token_path(settings))},  # read by tasks: each start of the server makes a new token
    }
    submit = {
        "conn_type": "spark",
        "host": "local[2]",
        "extra": {"deploy-mode": "client", "spark-binary": "spark-submit"},
    }
    keys = _ensure_keys(settings)
    ensure_passwords(settings)  # otherwise Airflow generates and logs them
    return {
        **inherited,
        **settings.environment,
        **session.spark_environment(),
        "PATH": f"{session.venv_folder() / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "AIRFLOW_HOME": str(_home_folder(settings)),
        "AIRFLOW_CONN_HINDCAST_SPARK": json.dumps(spark),
        "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps(submit),
        "AIRFLOW__CORE__DAGS_FOLDER": str(settings.root / "dags"),
        "AIRFLOW__CORE__PLUGINS_FOLDER": str(settings.root / "plugins"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONNECT_ARGS": "hindcast_local.database.CONNECT",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONNECT_ARGS_ASYNC": "hindcast_local.database.CONNECT",
        "AIRFLOW__CORE__EXECUTOR": "hindcast_local.executor.PreloadedExecutor",
        "AIRFLOW__CORE__PARALLELISM": str(max(8, os.cpu_count() or 1)),
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": settings.users,
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(passwords_path(settings)),
        "AIRFLOW__LOGGING__FILE_TASK_HANDLER_NEW_FOLDER_PERMISSIONS": oct(0o777 & ~settings.umask),
        "AIRFLOW__LOGGING__FILE_TASK_HANDLER_NEW_FILE_PERMISSIONS": oct(0o666 & ~settings.umask),
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{base_url(settings)}/execution/",
        "AIRFLOW__CORE__FERNET_KEY": keys["fernet"],
        "AIRFLOW__API__HOST": ports.HOST,
        "AIRFLOW__API__PORT": str(settings.airflow_port),
        "AIRFLOW__API__BASE_URL": base_url(settings),
        "AIRFLOW__API__WORKERS": "1",
        "AIRFLOW__API__SECRET_KEY": keys["api"],
        "AIRFLOW__API_AUTH__JWT_SECRET": keys["jwt"],
        "AIRFLOW__DAG_PROCESSOR__PARSING_PROCESSES": "1",
        "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "15",
        "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "15",
        "GX_ANALYTICS_ENABLED": "false",
    }


def _is_healthy(started: process.Process, since: datetime) -> bool:
    refuse_foreign(started.where)
    health = ports.read_json(f"{started.where}/api/v2/monitor/health")
    part = started.name.removeprefix("airflow-").replace("-", "_")
    if part == "api_server":
        return bool(health.get("metadatabase", {}).get("status") == "healthy")
    beat = health.get(part, {}).get(f"latest_{part}_heartbeat")
    healthy = health.get(part, {}).get("status") == "healthy"
    return bool(healthy and beat and datetime.fromisoformat(beat).astimezone(UTC) >= since)


def _ensure_keys(settings: Settings) -> dict[str, str]:
    """Return the secrets that Airflow's parts share; generated once, readable by the owner of the file only."""

    def generate() -> dict[str, str]:
        keys = {name: secrets.token_urlsafe(64) for name in ("api", "jwt")}
        return {**keys, "fernet": base64.urlsafe_b64encode(os.urandom(32)).decode()}

    return _ensure_secrets(_home_folder(settings) / "keys.json", generate)


def _ensure_secrets(path: Path, make: Callable[[], dict[str, str]]) -> dict[str, str]:
    """Return the secrets in the file at `path`; those that it lacks are generated (`make`) and written to it.

    PlatformError if another user owns it, or can read or write it.
    """
    remedy = (
        f"`make down`; remove {path} and `make up`, which makes new secrets (what Airflow keeps encrypted has to be "
        "entered again), or keep them: make the file yours with `chown`, and yours alone with `chmod 600`"
    )
    stored: dict[str, str] = {}
    with suppress(FileNotFoundError):
        stored = json.loads(private_files.read_secret(path, remedy))
    generated = make()
    if missing := generated.keys() - stored.keys():
        stored |= {name: generated[name] for name in missing}
        private_files.write_secret(path, json.dumps(stored))
    return stored


def _copy_database(database: Path, to: Path) -> None:
    """Copy a database as a whole or not at all, even if others copy it at the same time."""
    with tempfile.TemporaryDirectory(dir=to.parent) as folder:
        copy = Path(folder) / "copy.db"
        with closing(sqlite3.connect(database)) as source, closing(sqlite3.connect(copy)) as target:
            source.backup(target)
        copy.replace(to)


def _home_folder(settings: Settings) -> Path:
    return settings.var / "airflow"


def _airflow_command() -> str:
    return str(session.venv_folder() / "bin" / "airflow")
