"""A PostgreSQL of one's own and Debezium beside it, for tests that compare us with a real database.

    with postgres(folder) as db, debezium(db, broker, folder):
        db.run("CREATE TABLE item (id int PRIMARY KEY, price numeric(8,2))")
        db.commit("INSERT INTO item VALUES (1, 8)")    the moment of that transaction, as the database has it

Needs Debian's postgresql and, for root, its user `postgres`; skips without. Change events come to two topics per table:
`plain.<name>.<schema>.<table>` and `schema.<name>...`, the same records without and with their schemas.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import java_for_tests
import pytest

from hindcast_local import ports
from pipelines import until

_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "wal_level": "logical",
    "track_commit_timestamp": "on",
    "fsync": "off",
    "max_wal_senders": "4",
    "max_replication_slots": "4",
    "shared_buffers": "16MB",
}
_COMMITTED = "SELECT pg_xact_commit_timestamp('{}'::xid) AT TIME ZONE 'UTC'"


class Database:
    """A running PostgreSQL, worked through psql."""

    def __init__(self, port: int) -> None:
        self.port = port

    def run(self, *statements: str) -> str:
        """Statements, each a transaction of its own unless they say otherwise; the last one's rows, unaligned."""
        asked = [part for statement in statements for part in ("-c", statement)]
        where = ["-h", "127.0.0.1", "-p", str(self.port), "-U", "postgres", "-d", "postgres"]
        command = ["psql", "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", *where, *asked]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    def commit(self, *statements: str) -> datetime:
        """Statements in one transaction; when it was committed, to the microsecond, in UTC."""
        told = self.run(f"BEGIN; {'; '.join(statements)}; SELECT pg_current_xact_id(); COMMIT")
        return datetime.fromisoformat(f"{self.run(_COMMITTED.format(told.splitlines()[-1]))}+00:00")

    def rows(self, query: str) -> list[dict[str, Any]]:
        """The rows of a query, as PostgreSQL writes them as JSON; numbers with a point are decimals."""
        told = self.run(f"SELECT coalesce(json_agg(q), '[]') FROM ({query}) q")
        rows: list[dict[str, Any]] = json.loads(told, parse_float=Decimal)
        return rows


@contextmanager
def postgres(folder: Path) -> Iterator[Database]:
    """A fresh cluster on a free port of loopback, for everybody who reaches it; its log is in `folder`."""
    found, port = _binaries(), ports.find_free_port()
    root = os.geteuid() == 0  # for whom PostgreSQL does not run
    user: dict[str, Any] = {"user": "postgres", "group": "postgres", "extra_groups": []} if root else {}
    with tempfile.TemporaryDirectory(prefix="hindcast-postgres-") as data:  # pytest's folders are for their owner alone
        if root:
            shutil.chown(data, "postgres", "postgres")
        command = [str(found / "initdb"), "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync"]
        subprocess.run(command, check=True, capture_output=True, cwd="/", **user)
        asked = [part for name, value in _SETTINGS.items() for part in ("-c", f"{name}={value}")]
        command = [str(found / "postgres"), "-D", data, "-p", str(port), *asked]
        with (folder / "postgres.log").open("wb") as log:
            server = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, cwd="/", **user)
        try:
            ready = [str(found / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(port), "-t", "30"]
            until(lambda: subprocess.run(ready, check=False).returncode == 0)
            yield Database(port)
        finally:
            server.terminate()
            server.wait(30)


@contextmanager
def debezium(
    database: Database, servers: str, folder: Path, config: Mapping[str, str] | None = None, *, crash: bool = False
) -> Iterator[None]:
    """Debezium, until the end of the block; it goes on from where the last one of this folder had noted to be.

    With `crash` it is killed and what it has noted is lost, so that the next one sends again all that this one sent.
    """
    noted = folder / ("lost.dat" if crash else "offsets.dat")
    if crash:
        shutil.copy(folder / "offsets.dat", noted)
    settings = {
        "name": "engine",
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "offset.storage": "org.apache.kafka.connect.storage.FileOffsetBackingStore",
        "offset.storage.file.filename": str(noted),
        "offset.flush.interval.ms": "100",
        "flush.lsn.source": str(not crash).lower(),  # else the database would note it
        "database.hostname": "127.0.0.1",
        "database.port": str(database.port),
        "database.user": "postgres",
        "database.password": "none",
        "database.dbname": "postgres",
        "plugin.name": "pgoutput",
        "provide.transaction.metadata": "true",
        **(config or {}),
    }
    properties = folder / "engine.properties"
    properties.write_text("".join(f"{name}={value}\n" for name, value in settings.items()), encoding="utf-8")
    with (folder / "debezium.log").open("ab") as log:
        command = [*java_for_tests.debezium(), str(properties), servers]
        engine = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log)
        try:
            yield
        finally:
            if crash:
                engine.kill()
            engine.communicate(timeout=60)


def _binaries() -> Path:
    """The folder of PostgreSQL's programs."""
    places = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name))
    if not places or shutil.which("psql") is None:
        pytest.skip("no PostgreSQL here (apt-get install postgresql)")
    return places[-1]
