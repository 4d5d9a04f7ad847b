"""Run the tests of a contract: given records, whole runs on them, and the rows that must be there then.

Each test has a warehouse of its own in a temporary folder. Its records are the topics of its runs
(kafka/given_topics.py), which are planned, replayed, built, gated and reported by the steps of every run
(runs/run_steps.py). No broker is asked; the session is shared by all tests.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
from pyspark.sql import SparkSession

from hindcast.bitemporal.predicates import Question
from hindcast.common.errors import HindcastError, RequestError, escape_controls
from hindcast.common.settings import Settings
from hindcast.contract import Contract, find
from hindcast.contract.bound import BoundContract, bind_contract
from hindcast.contract.contract_tests import REFUSED_COLUMNS, ContractTest, WrittenRecord, build_test_error, load_tests
from hindcast.formats.encode import encode_part
from hindcast.ingest import quarantine
from hindcast.kafka.given_topics import GivenRecord, GivenTopics
from hindcast.ops.contract_test_rows import compare_rows
from hindcast.query import read
from hindcast.runs import run_steps

_ALL_TIMES = Question(from_time=datetime(1, 1, 2, tzinfo=UTC), to_time=datetime(9999, 12, 31, tzinfo=UTC))
"""All rows that are current, whenever they are true."""


@dataclass(frozen=True)
class ContractTestResult:
    """What became of a test: what differs from what it expects, as text, empty if it passed; and how long it took."""

    pipeline: str
    name: str
    differences: tuple[str, ...]
    seconds: float

    @property
    def has_passed(self) -> bool:
        """True if everything is as the test expects."""
        return not self.differences


_TopicRecord = tuple[str, GivenRecord]
"""A record with the name of its topic in Kafka."""


@dataclass(frozen=True)
class PreparedTest:
    """A test of a contract, with the records of each run as Kafka would have them."""

    contract: Contract
    test: ContractTest
    runs: tuple[tuple[_TopicRecord, ...], ...]


def prepare_tests(settings: Settings, pipeline: str, path: Path) -> list[PreparedTest]:
    """Return the tests of a pipeline in a file; raise ContractError for an invalid test, or the contract's own error.

    Raise RequestError for a contract that reads tables of other pipelines: a test has no rows of theirs.
    """
    contract = find(settings.schemas, pipeline, settings.choice)
    if contract.inputs:
        raise RequestError(
            f"its tests cannot run: it reads {', '.join(contract.inputs)}, a table of another pipeline",
            where=pipeline,
            fix="move the views that only need topics into a contract of their own, and test that one",
        )
    return [PreparedTest(contract, test, _encode_runs(contract, path, test)) for test in load_tests(path, contract)]


def run_test(spark: SparkSession, settings: Settings, prepared: PreparedTest) -> ContractTestResult:
    """Run one test in a warehouse of its own, which is removed then, and return its result."""
    contract, test, started = prepared.contract, prepared.test, time.monotonic()
    with TemporaryDirectory(prefix="hindcast-test-") as folder:
        place = replace(settings, warehouse=f"{folder}/warehouse", reports=Path(folder) / "reports")
        try:
            _execute_runs(spark, place, contract, prepared.runs)
        except HindcastError as error:
            differences = [] if test.error is not None and test.error in str(error) else _describe_error(test, error)
        else:
            differences = _find_differences(bind_contract(contract, place), test)
    return ContractTestResult(contract.pipeline, test.name, tuple(differences), time.monotonic() - started)


def _encode_runs(contract: Contract, path: Path, test: ContractTest) -> tuple[tuple[_TopicRecord, ...], ...]:
    return tuple(
        tuple(_encode_record(contract, path, name, record) for name, records in run.items() for record in records)
        for run in test.runs
    )


def _encode_record(contract: Contract, path: Path, name: str, record: WrittenRecord) -> _TopicRecord:
    """Return a record as Kafka would have it; raise ContractError if its topic's format cannot write it."""
    topic = contract.topics[name]
    parts: dict[str, bytes | None] = {}
    try:
        parts["key"] = encode_part(topic, "key", record.key)
        parts["value"] = encode_part(topic, "value", record.value)
    except ValueError as error:
        found, _, fix = str(error).partition("; ")
        part = "value" if "key" in parts else "key"
        raise build_test_error(path, (*record.place, part), f"{part}: {found}", fix) from None
    headers = tuple((header, None if text is None else text.encode()) for header, text in record.headers.items())
    given = GivenRecord(record.partition, record.timestamp, parts["key"], parts["value"], headers)
    return record.topic or contract.kafka_topic(name), given


def _execute_runs(
    spark: SparkSession, settings: Settings, contract: Contract, runs: Sequence[Sequence[_TopicRecord]]
) -> None:
    """Do whole runs, one after the other, each with the records that were given up to then."""
    records = list(chain(*runs))
    named = [contract.kafka_topic(name) for name, topic in contract.topics.items() if topic.pattern is None]
    topics = dict.fromkeys([*named, *(topic for topic, _ in records)])
    given = GivenTopics(topics, 1 + max((record.partition for _, record in records), default=0))
    for number, run in enumerate(runs, 1):
        for topic, record in run:
            given.append_records(topic, [record])
        _execute_run(spark, settings, contract, f"test__{number}", given)


def _execute_run(spark: SparkSession, settings: Settings, contract: Contract, run_id: str, given: GivenTopics) -> None:
    pipeline = contract.pipeline
    number = run_steps.plan_run(settings, pipeline, run_id, given=given)
    for topic in contract.topics:
        run_steps.replay_topic(spark, settings, pipeline, number, topic, given)
    for view in contract.ordered_views:
        run_steps.build_view(spark, settings, pipeline, number, view)
    run_steps.finish_run(settings, pipeline, number)


def _describe_error(test: ContractTest, error: HindcastError) -> list[str]:
    expected = [] if test.error is None else [f"expected an error with the text '{test.error}'"]
    return [*expected, f"a run failed: {error}"]


def _find_differences(contract: BoundContract, test: ContractTest) -> list[str]:
    """Return a text for each table, and each topic's refused records, that is not as a test expects."""
    if test.error is not None:
        return [f"expected an error with the text '{test.error}', but no run failed"]
    found = {name: (rows, _read_current_rows(contract, name)) for name, rows in test.tables.items()}
    found |= {
        f"refused records of {name}": (rows, _read_refused(contract, name)) for name, rows in test.refused.items()
    }
    compared = (compare_rows(name, expected, rows) for name, (expected, rows) in found.items())
    return [difference for difference in compared if difference is not None]


def _read_current_rows(contract: BoundContract, name: str) -> pa.Table:
    return read.query(contract.warehouse, contract, name, _ALL_TIMES)


def _read_refused(contract: BoundContract, name: str) -> pa.Table:
    return quarantine.read_refused(contract.warehouse, contract, name).select(REFUSED_COLUMNS)


def format_result(result: ContractTestResult) -> str:
    """Return a line that says whether a test passed, and below it what differs from what it expects."""
    state = "passed" if result.has_passed else "failed"
    line = f"{state}  {result.pipeline}: {escape_controls(result.name)} ({result.seconds:.1f} s)"
    return _format_below(line, result.differences)


def format_load_error(pipeline: str, error: HindcastError) -> str:
    """Return a line that says that the tests of a pipeline failed, as they cannot be loaded, and below it the error."""
    return _format_below(f"failed  {pipeline}: its tests cannot be loaded", [str(error)])


def _format_below(line: str, texts: Sequence[str]) -> str:
    """Return a line, and below it texts, indented."""
    below = [f"    {part}" if part else "" for text in texts for part in text.splitlines()]
    return "\n".join([line, *below])
