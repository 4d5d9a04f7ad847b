"""Airflow on its embedded default: SQLite, LocalExecutor, reachable from this machine only.

Who may log in is said by `Settings.users`; their passwords are made here.

Its four parts run as processes of their own, as under `airflow standalone`, but they start at once and beside each
other, and none of them is orphaned when another one dies.
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

from hindcast import session
from hindcast.errors import PlatformError
from hindcast.local import ports, private, process
from hindcast.local.api import Airflow, refuse_foreign
from hindcast.local.spark import token_file
from hindcast.remote import TOKEN_FILE
from hindcast.settings import Settings

PARTS = {
    "airflow-api-server": ("api-server",),
    "airflow-scheduler": ("scheduler", "--skip-serve-logs"),
    "airflow-dag-processor": ("dag-processor",),
    "airflow-triggerer": ("triggerer", "--skip-serve-logs"),
}
"""Name and command of each part. Their logs are read from disk, so nobody needs to serve them."""


OBSERVING = ("AIRFLOW__METRICS__", "AIRFLOW__OPENLINEAGE__")
"""What begins the variables of Airflow's own that it is given as they are: where metrics and lineage go."""


def start(now: Settings, name: str) -> process.Process:
    """Start one of `PARTS`; the database must be there (`migrate`). `wait` until it is healthy."""
    return process.start(
        name,
        url(now),
        [_airflow(), *PARTS[name]],
        log=now.logs / f"{name}.log",
        env=environment(now),
        cwd=_home(now),
    )


def migrate(now: Settings) -> None:
    """Make Airflow's database, or bring it up to this version of Airflow; nothing to do is quick.

    A new one is a copy of the empty one that was made first.
    """
    done, database, release = _home(now) / "migrated", _home(now) / "airflow.db", version("apache-airflow")
    if database.exists() and done.exists() and done.read_text(encoding="utf-8") == release:
        return
    _home(now).mkdir(parents=True, exist_ok=True)
    empty, new = session.home() / "airflow" / f"{release}.db", not database.exists()
    if new and empty.exists():
        _copy(empty, database)
    else:
        _upgrade(now, database)
        if new:
            empty.parent.mkdir(exist_ok=True)
            _copy(database, empty)
    done.write_text(release, encoding="utf-8")


def _upgrade(now: Settings, database: Path) -> None:
    """Airflow's own migrations."""
    log = now.logs / "airflow-migrate.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        code = subprocess.run(
            [_airflow(), "db", "migrate"],
            env=environment(now),
            cwd=_home(now),
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        ).returncode
    if code != 0:
        raise PlatformError("Airflow's database cannot be made", where=str(database), mend=f"read the log: {log}")


def wait(started: process.Process, since: datetime, seconds: float = 120) -> None:
    """Return when Airflow's API server answers, and says of a part that it has been healthy after `since`.

    PlatformError if another user of this machine has its port: tasks would send their tokens there.
    """
    ports.wait(started, lambda: _is_healthy(started, since), seconds)


def api(now: Settings) -> Airflow:
    """The REST API of the running Airflow, for an administrator."""
    admin = next(user.partition(":")[0] for user in now.users.split(",") if user.endswith(":admin"))
    return Airflow(url(now), (admin, passwords(now)[admin]))


def passwords(now: Settings) -> dict[str, str]:
    """The password of each of `Settings.users`: made once for this machine, readable by their owner only."""
    return _secret(passwords_file(now), lambda: {name: secrets.token_urlsafe(12) for name in names(now)})


def names(now: Settings) -> list[str]:
    """Return the names of `Settings.users`."""
    return [user.partition(":")[0] for user in now.users.split(",")]


def passwords_file(now: Settings) -> Path:
    """Where `passwords` are."""
    return _home(now) / "passwords.json"


def unread(now: Settings, seconds: float = 30) -> list[str]:
    """The errors of files that could not be loaded; waits until Airflow has read a DAG, or could not."""
    end, web = time.monotonic() + seconds, api(now)
    while (found := web.broken()) is None and time.monotonic() < end:
        time.sleep(0.3)
    return found or []


def url(now: Settings) -> str:
    """Where the UI is."""
    return f"http://{ports.HOST}:{now.airflow_port}"


def environment(now: Settings) -> dict[str, str]:
    """All that Airflow and its tasks read from the environment: Airflow's options, connections, our own settings."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name.startswith(OBSERVING) or not name.startswith(("AIRFLOW", "SPARK_", "PYSPARK_", "PYTHONPATH"))
    }
    spark = {
        "conn_type": "spark_connect",
        "host": ports.HOST,
        "port": now.spark_port,
        "extra": {TOKEN_FILE: str(token_file(now))},  # tasks read it: each start of the server makes a new token
    }
    submit = {
        "conn_type": "spark",
        "host": "local[2]",
        "extra": {"deploy-mode": "client", "spark-binary": "spark-submit"},
    }
    keys = _keys(now)
    passwords(now)  # else Airflow makes them, and prints them into its log
    return {
        **inherited,
        **now.environment,
        **session.environment(),
        "PATH": f"{session.home() / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "AIRFLOW_HOME": str(_home(now)),
        "AIRFLOW_CONN_HINDCAST_SPARK": json.dumps(spark),
        "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps(submit),
        "AIRFLOW__CORE__DAGS_FOLDER": str(now.root / "dags"),
        "AIRFLOW__CORE__PLUGINS_FOLDER": str(now.root / "plugins"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONNECT_ARGS": "hindcast.local.database.CONNECT",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONNECT_ARGS_ASYNC": "hindcast.local.database.CONNECT",
        "AIRFLOW__CORE__EXECUTOR": "hindcast.local.executor.PreloadedExecutor",
        "AIRFLOW__CORE__PARALLELISM": str(max(8, os.cpu_count() or 1)),
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": now.users,
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(passwords_file(now)),
        "AIRFLOW__LOGGING__FILE_TASK_HANDLER_NEW_FOLDER_PERMISSIONS": oct(0o777 & ~now.umask),
        "AIRFLOW__LOGGING__FILE_TASK_HANDLER_NEW_FILE_PERMISSIONS": oct(0o666 & ~now.umask),
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{url(now)}/execution/",
        "AIRFLOW__CORE__FERNET_KEY": keys["fernet"],
        "AIRFLOW__API__HOST": ports.HOST,
        "AIRFLOW__API__PORT": str(now.airflow_port),
        "AIRFLOW__API__BASE_URL": url(now),
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
    health = ports.answer(f"{started.where}/api/v2/monitor/health")
    part = started.name.removeprefix("airflow-").replace("-", "_")
    if part == "api_server":
        return bool(health.get("metadatabase", {}).get("status") == "healthy")
    beat = health.get(part, {}).get(f"latest_{part}_heartbeat")
    healthy = health.get(part, {}).get("status") == "healthy"
    return bool(healthy and beat and datetime.fromisoformat(beat).astimezone(UTC) >= since)


def _keys(now: Settings) -> dict[str, str]:
    """The secrets that Airflow's parts share: made once for this machine, readable by their owner only."""

    def made() -> dict[str, str]:
        keys = {name: secrets.token_urlsafe(64) for name in ("api", "jwt")}
        return {**keys, "fernet": base64.urlsafe_b64encode(os.urandom(32)).decode()}

    return _secret(_home(now) / "keys.json", made)


def _secret(path: Path, make: Callable[[], dict[str, str]]) -> dict[str, str]:
    """What the file at `path` holds, which is made if it is not there or lacks one of the names.

    PlatformError if another user owns it, or can read or write it.
    """
    remedy = (
        f"`make down`; remove {path} and `make up`, which makes new secrets (what Airflow keeps encrypted has to be "
        "entered again), or keep them: make the file yours with `chown`, and yours alone with `chmod 600`"
    )
    found: dict[str, str] = {}
    with suppress(FileNotFoundError):
        found = json.loads(private.read_secret(path, remedy))
    made = make()
    if missing := made.keys() - found.keys():
        found |= {name: made[name] for name in missing}
        private.write_secret(path, json.dumps(found))
    return found


def _copy(database: Path, to: Path) -> None:
    """A whole copy or none, whoever else copies it at the same time."""
    with tempfile.TemporaryDirectory(dir=to.parent) as folder:
        copy = Path(folder) / "copy.db"
        with closing(sqlite3.connect(database)) as source, closing(sqlite3.connect(copy)) as target:
            source.backup(target)
        copy.replace(to)


def _home(now: Settings) -> Path:
    return now.var / "airflow"


def _airflow() -> str:
    return str(session.home() / "bin" / "airflow")
