"""A password of Kafka, in everything that Airflow and Spark write or show while pipelines run by it."""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import quote

import pytest

from browser import running
from hindcast.kafka import produce
from hindcast.kafka.produce import ProducerRecord
from hindcast.plan import journal
from secured import READER, SECRETS, secured

PIPELINE = """\
pipeline: guarded
start: 2026-01-01
topics:
  sales: {read: stream, key: {id: int}, value: {item: string}}
  lost: {read: stream, topic: nobody.may.read, key: {id: int}, value: {item: string}}
views:
  sold: {stream: sales, group_by: {item: item}, aggregate: {n: count(*)}}
"""


@pytest.mark.long
def test_a_password_is_in_no_log_no_database_no_page_and_no_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contract = tmp_path / "guarded.yaml"
    contract.write_text(PIPELINE)
    stack, kafka = tmp_path / "stack", tmp_path / "kafka"
    stack.mkdir()
    kafka.mkdir()
    with secured(kafka) as broker:
        broker.allow(READER, "READ", topic="sales")
        produce.create_topics(broker.plaintext, "sales", "nobody.may.read")
        produce.send_records(
            broker.plaintext, "sales", [ProducerRecord(b"1", b'{"item": "pen"}', datetime(2026, 1, 1, 12, tzinfo=UTC))]
        )
        for name, value in broker.sasl().items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("AIRFLOW__OPENLINEAGE__TRANSPORT", f'{{"type": "file", "log_file_path": "{stack}/lineage"}}')
        with watched_processes() as lines, running(stack, contract, HINDCAST_KAFKA=broker.sasl_ssl) as (now, web):
            web.unpause("guarded")
            failed = web.wait("guarded", web.trigger("guarded"), state="failed")
            assert any("nobody.may.read" in line for line in web.read_log("guarded", failed, "plan"))
            broker.allow(READER, "READ", topic="nobody.may.read")
            done = web.wait("guarded", web.trigger("guarded"))
            assert journal.read_runs(now.warehouse, "guarded")[-1].state == "completed"
            shown = [
                str(web._call("GET", f"/api/v2/dags/guarded/dagRuns/{run}/taskInstances")) for run in (failed, done)
            ]
            assert all("plan" in text for text in shown)
        written = [path for path in stack.rglob("*") if path.is_file() and not path.is_symlink()]
        assert {"airflow.db", "spark.log", "airflow-scheduler.log", "attempt=1.log"} <= {path.name for path in written}
        assert [str(path) for path in written if holds_password(path.read_bytes())] == []
        if find_spec("airflow.providers.openlineage"):
            assert any(path.name.startswith("lineage") for path in written)
        assert lines
        assert [line for line in lines if holds_password(line)] == []
        assert not any(holds_password(text.encode()) for text in shown)


def holds_password(content: bytes) -> bool:
    """Whether bytes hold the password, as it is or as it is often written."""
    plain = SECRETS[READER]
    written = (plain, quote(plain), plain.encode().hex(), base64.b64encode(plain.encode()).decode().rstrip("="))
    return any(text.encode() in content for text in written)


@contextmanager
def watched_processes() -> Iterator[set[bytes]]:
    """The command lines of all processes that there have been meanwhile."""
    seen: set[bytes] = set()
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.05):
            for path in Path("/proc").glob("[0-9]*/cmdline"):
                try:
                    seen.add(path.read_bytes())
                except OSError:
                    continue

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield seen
    finally:
        over.set()
        watcher.join()
