"""Whole pipelines for tests: a contract from YAML text, records on the real broker, runs, and what they wrote.

    with pipeline(spark, broker, tmp_path, CONTRACT) as p:
        p.send("menu", ("curry", {"price": 8}, 0))
        p.run()
        assert p.believed("menu") == [...]

Seconds in records and rows are valid time since T0; runs in rows are the numbers of those that opened and closed them.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from pyarrow.dataset import Dataset

from hindcast.common.settings import Settings, read_settings
from hindcast.common.yaml_loader import ContractLoader
from hindcast.contract import load
from hindcast.contract.bound import BoundContract, bind_contract
from hindcast.kafka import produce
from hindcast.ops.verify.verify import verify_tables
from hindcast.plan import journal
from hindcast.runs import incremental_state, run_steps
from hindcast.store import row_reader, table_columns, tables
from hindcast.store.tables import Table, locate_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T0 = datetime(2026, 1, 1, tzinfo=UTC)
"""Second 0 of the stories that tests tell."""

RESTAURANT = """
pipeline: restaurant
start: 2026-01-01
topics:
  menu:
    read: table
    key: {item: string}
    value: {price: "decimal(8,2)"}
  orders:
    read: stream
    key: {customer: string}
    value: {item: string, quantity: int}
views:
  bills:
    stream: orders
    join: {table: menu, on: item}
    select: {item: orders.item, amount: quantity * price}
"""

_numbers = itertools.count(1)

Sent = tuple[Any, Any, float | datetime | None] | tuple[Any, Any, float | datetime | None, tuple[str, bytes]]
"""Key, value (None: null; bytes as they are; else as text or JSON), the second or moment of a record; a header."""


def at(second: float | datetime) -> datetime:
    return second if isinstance(second, datetime) else T0 + timedelta(seconds=second)


class Pipeline:
    """One contract, its Kafka topics (of names that no other test has) and its warehouse."""

    def __init__(self, spark: SparkSession | None, servers: str, folder: Path, text: str) -> None:
        self.spark, self.servers, self.folder = spark, servers, folder
        self.prefix = f"t{next(_numbers)}"
        self.name = "?"
        self.before: dict[str, int | None] = {}
        self.write(text)

    @property
    def contract(self) -> BoundContract:
        return bind_contract(load(self.path), self.settings)

    @property
    def settings(self) -> Settings:
        return read_settings({**os.environ, **self.environ})

    @property
    def path(self) -> Path:
        return self.folder / "schemas" / f"{self.name}.yaml"

    @property
    def warehouse(self) -> str:
        return str(self.folder / "warehouse")

    @property
    def environ(self) -> dict[str, str]:
        return {
            "HINDCAST_WAREHOUSE": self.warehouse,
            "HINDCAST_SCHEMAS": str(self.folder / "schemas"),
            "HINDCAST_KAFKA": self.servers,
            "HINDCAST_VAR": str(self.folder / "var"),
        }

    def write(self, text: str) -> None:
        """Puts the contract down; each topic that has no name in Kafka gets one of its own, each pattern its prefix."""
        told = yaml.load(text, Loader=ContractLoader)  # noqa: S506  # a safe loader
        for name, topic in told["topics"].items():
            if "pattern" in topic:
                topic["pattern"] = self.kafka(topic["pattern"])
            else:
                topic.setdefault("topic", self.kafka(name))
        self.name = told["pipeline"]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(yaml.safe_dump(told, sort_keys=False), encoding="utf-8")

    def kafka(self, topic: str) -> str:
        return f"{self.prefix}.{topic}"

    def send(self, topic: str, *records: Sent) -> None:
        """Sends to the first partition that Kafka's own hash gives; the topic has one."""
        told = [
            produce.ProducerRecord(_bytes(k), _bytes(v), None if s is None else at(s), tuple(headers))
            for k, v, s, *headers in records
        ]
        produce.send_records(self.servers, self.kafka(topic), told)

    def run(self, run_id: str | None = None, until: float | None = None, **asked: str) -> dict[str, Any]:
        """One whole run; its report."""
        assert self.spark is not None
        with self.here():
            name = run_id or f"run-{next(_numbers)}"
            report = run_steps.run_pipeline(
                self.spark, self.settings, self.name, name, None if until is None else at(until), **asked
            )
            return report.as_json()

    @contextmanager
    def here(self) -> Iterator[None]:
        """With the settings of this pipeline."""
        with pytest.MonkeyPatch.context() as patch:
            for name, value in self.environ.items():
                patch.setenv(name, value)
            yield

    def table(self, name: str) -> Table:
        return locate_table(self.warehouse, self.contract, name)

    def states(self) -> list[tuple[int, str]]:
        return [(run.number, run.state) for run in journal.read_runs(self.warehouse, self.name)]

    def versions(self) -> dict[str, int | None]:
        """The Delta version of every table of the pipeline's folder, None for one that is not there."""
        places = [f"{folder}/{topic}" for topic in self.contract.topics for folder in ("logs", "fates")]
        names = [*self.contract.topics, *self.contract.views, *places, "quarantine", "failing"]
        found = {name: tables.open_table(Table(self.warehouse, self.name, name, "log")) for name in names}
        return {name: table.version() if table else None for name, table in found.items()}

    def history(self, name: str) -> list[tuple[Any, ...]]:
        """Every row ever believed, with its periods, and the runs that opened and closed it; in order."""
        numbers = {run.known_at: run.number for run in journal.read_runs(self.warehouse, self.name)}
        table = self.table(name)
        rows = self.raw(name)
        columns = table_columns.list_columns(table, known_at=datetime.min.replace(tzinfo=UTC)) if rows else []
        told = []
        for row in rows:
            plain = [
                numbers[row[c]] if c.startswith("system") and row[c] is not None else _plain(row[c]) for c in columns
            ]
            told.append(tuple(plain))
        first = len(table.key)
        return sorted(told, key=lambda row: tuple((v is None, str(v)) for v in (*row[:first], *row[-4:], *row)))

    def believed(self, name: str) -> list[tuple[Any, ...]]:
        """The rows believed now, without their system period; in order."""
        return [row[:-2] for row in self.history(name) if row[-1] is None]

    def raw(self, name: str) -> list[dict[str, Any]]:
        """The rows of any table of the pipeline as Delta has them; none where there is no table."""
        found = tables.open_table(Table(self.warehouse, self.name, name, "log"))
        if found is None:
            return []
        read = row_reader.open_arrow_rows(found)
        rows: list[dict[str, Any]] = (read.to_table() if isinstance(read, Dataset) else read.read_all()).to_pylist()
        return rows

    def fates(self, topic: str) -> list[tuple[int, str]]:
        """Offset and fate of each record in a topic's log."""
        return sorted((row["offset"], row["fate"]) for row in self.raw(f"logs/{topic}"))


@contextmanager
def pipeline(
    spark: SparkSession | None, servers: str, folder: Path, text: str = RESTAURANT, partitions: int = 1
) -> Iterator[Pipeline]:
    """A pipeline whose topics are there, but for those of patterns, and whose settings hold inside."""
    made = Pipeline(spark, servers, folder, text)
    named = [made.kafka(name) for name, topic in made.contract.topics.items() if topic.pattern is None]
    if named:
        produce.create_topics(servers, *named, partitions=partitions)
    with made.here():
        yield made


SEED = {
    "menu": [("curry", {"price": 8}, 0), ("soup", {"price": 5}, 0), ("curry", {"price": 10}, 4)],
    "orders": [
        ("anna", {"item": "curry", "quantity": 1}, 1),
        ("bob", {"item": "curry", "quantity": 2}, 5),
        ("candace", {"item": "curry", "quantity": 3}, 3),
        ("dan", {"item": "cake", "quantity": 1}, 3),
    ],
}
"""The seed's example: curry goes from $8 to $10 at 4; Candace's order of 3 comes after the change is known."""

CORRECTION = {"menu": [("curry", {"price": 9}, 2)], "orders": []}
"""Late: from 2 on curry was $9."""


@pytest.fixture(scope="session")
def restaurant(spark: SparkSession, broker: str, tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    """The seed's example in run 1, a late correction in run 2, nothing new in run 3. To be read, not to be run."""
    with pipeline(spark, broker, tmp_path_factory.mktemp("restaurant")) as made:
        tell(made, SEED)
        made.run("first")
        tell(made, CORRECTION)
        made.run("second")
        made.before = made.versions()
        made.run("third")
    return made


def derive_whole_up_to(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Derive a table whole, and without kernels, up to so many rows of its inputs; incrementally if there are more."""
    monkeypatch.setattr(incremental_state, "MAX_WHOLE_ROWS", rows)
    monkeypatch.setenv("HINDCAST_KERNELS", "off" if rows > 0 else "on")


def cloned(p: Pipeline, folder: Path) -> Pipeline:
    """A pipeline with the contract, the topics and the tables of another, to change or to break. It has to be used
    inside `here`, and to send nothing: the topics are those of the other.
    """
    made = Pipeline(p.spark, p.servers, folder, p.path.read_text(encoding="utf-8"))
    shutil.copytree(p.warehouse, made.warehouse)
    return made


def wrong(p: Pipeline) -> list[str]:
    """What `hindcast verify --whole` finds, and what it could not ask."""
    spark = p.spark
    assert spark is not None
    told = verify_tables(p.contract, spark=lambda: spark, whole=True)
    return [f"{it.check}: {it.where}: {it.found}" for it in told.findings] + told.not_checked


def tell(p: Pipeline, records: dict[str, list[Sent]]) -> None:
    for topic, sent in records.items():
        p.send(topic, *sent)


def _bytes(value: Any) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    return (value if isinstance(value, str) else json.dumps(value)).encode()


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        seconds = (value - T0).total_seconds()
        return int(seconds) if seconds.is_integer() else seconds
    if isinstance(value, Decimal):
        return float(value)
    return value


def tuples(rows: Sequence[dict[str, Any]], *columns: str) -> list[tuple[Any, ...]]:
    """These columns of rows, sorted."""
    return sorted((tuple(_plain(row[c]) for c in columns) for row in rows), key=str)


def until(condition: Callable[[], bool], seconds: float = 20) -> None:
    """Waits for what others do."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "this did not come true"
        time.sleep(0.05)
