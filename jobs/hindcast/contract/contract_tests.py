"""Tests of a contract: records, and the rows that runs make of them, in a YAML file beside the contracts. Pure.

    - test: a late rate corrects the payment
      given: {rates: [{key: EUR, value: {rate: 1.05}, timestamp: 2026-01-05}]}
      when: {payments: [{key: p1, value: {amount: 100}, timestamp: 2026-01-06}]}
      then: {dollars: [{payment: p1, dollars: 105.0}]}

`given` are the records of a first run, each entry of `when` those of one later run. `then` has the rows of tables after
the last run: all of them, and of each only the columns that are named. `ops/contract_test_runs.py` runs the tests.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import NoReturn, TypeGuard

from hindcast.common.errors import ContractError, suggest_nearest
from hindcast.contract.folder import list_contract_files, locate_complaint_in_file
from hindcast.contract.model import Contract
from hindcast.contract.shapes import PERIODS, FieldPath, list_shapes
from hindcast.contract.topic import Topic
from hindcast.contract.types import ContractValue, format_value, parse_moment
from hindcast.contract.view_checks import Complaint
from hindcast.contract.yaml_documents import read_document

FOLDER = "tests"
"""The folder of the tests, in that of the contracts."""

ERROR, REFUSED = "error", "refused"
"""Entries of `then` that are not tables: a text in the error of a run, and the refused records of topics."""

REFUSED_COLUMNS = ("partition", "offset", "fate", "reason")
"""The columns of refused records."""

MOST_PARTITIONS = 100
"""The most partitions of a topic in a test."""

Rows = tuple[Mapping[str, ContractValue], ...]


@dataclass(frozen=True)
class WrittenRecord:
    """A record as a test has it; `place` is where it is in the file. `topic` names its topic in Kafka, for patterns."""

    key: ContractValue
    value: ContractValue
    timestamp: datetime
    partition: int
    headers: Mapping[str, str | None]
    topic: str | None
    place: FieldPath


@dataclass(frozen=True)
class ContractTest:
    """A test: the records of each run by topic, and what must be there then; `place` is where it is in the file.

    `tables` and `refused`: rows by table and by topic. `error`: a text in the error of a run; without it no run fails.
    """

    name: str
    runs: tuple[Mapping[str, tuple[WrittenRecord, ...]], ...]
    tables: Mapping[str, Rows]
    refused: Mapping[str, Rows]
    error: str | None
    place: FieldPath


def list_test_files(schemas: Path) -> dict[str, Path]:
    """Return the files of tests beside the contracts of a folder, by pipeline; empty if there are none."""
    folder = schemas / FOLDER
    return {path.stem: path for path in list_contract_files(folder)} if folder.is_dir() else {}


def load_tests(path: Path, contract: Contract) -> list[ContractTest]:
    """Return the tests in a file; raise ContractError with file, line, what was found and the fix."""
    other = path.with_suffix(".yml" if path.suffix == ".yaml" else ".yaml")
    if os.path.lexists(other):
        found = f"{other.name} is beside it, and both have tests of {path.stem}"
        raise ContractError(found, where=f"{path}:1", fix="move all tests into one of the two files")
    document = read_document(path)
    with _locate_problems(path):
        if not isinstance(document, list) or not document:
            _refuse(
                (), "contains no list of tests", "write - test: NAME with given: and then: (docs/contract-tests.md)"
            )
        tests = [_parse_test(contract, (n,), test) for n, test in enumerate(document)]
        names: set[str] = set()
        for test in tests:
            if test.name in names:
                _refuse(
                    (*test.place, "test"), f"two tests are named {format_value(test.name)}", "rename one of the two"
                )
            names.add(test.name)
    return tests


def build_test_error(path: Path, place: FieldPath, found: str, fix: str) -> ContractError:
    """Return an error about a place in a file of tests, with its line."""
    return locate_complaint_in_file(path, Complaint(place, found, fix))


class _TestError(Exception):
    """A problem with a test, as a complaint."""

    def __init__(self, complaint: Complaint) -> None:
        self.complaint = complaint
        super().__init__(complaint.found)


def _refuse(place: FieldPath, found: str, fix: str) -> NoReturn:
    raise _TestError(Complaint(place, found, fix))


@contextmanager
def _locate_problems(path: Path) -> Iterator[None]:
    """Raise the problem with a test as a ContractError with file and line."""
    try:
        yield
    except _TestError as problem:
        raise locate_complaint_in_file(path, problem.complaint) from None


def _parse_test(contract: Contract, place: FieldPath, value: ContractValue) -> ContractTest:
    test = _require_fields(place, value, ("test", "given", "then"), ("when",))
    name = test["test"]
    if not isinstance(name, str) or not name.strip():
        _refuse((*place, "test"), f"test: expected a name, found {format_value(name)}", "write what the test shows")
    when = test.get("when")
    later = when if isinstance(when, list) else [] if when is None else [when]
    places = [(*place, "when", n) if isinstance(when, list) else (*place, "when") for n in range(len(later))]
    then = _require_mapping((*place, "then"), test["then"])
    if not then:
        _refuse((*place, "then"), "then: nothing is expected", "name a table with its rows; [] for none")
    error = then.get(ERROR)
    if isinstance(error, str) and not error.strip():
        fix = f"write a text that the run's error must have, for example {ERROR}: 1 of 2 rows fail"
        _refuse((*place, "then", ERROR), f"then.{ERROR}: an empty text is in every error", fix)
    if isinstance(error, str) and len(then) > 1:
        fix = f"write either {ERROR}: or tables with their rows"
        _refuse((*place, "then"), "then: a run that fails has no rows", fix)
    reserved = {name for name, kind in ((ERROR, str), (REFUSED, Mapping)) if isinstance(then.get(name), kind)}
    refused = _require_mapping((*place, "then", REFUSED), then[REFUSED]) if REFUSED in reserved else {}
    if REFUSED in reserved and not refused:
        fix = "name a topic with its refused records; [] for none"
        _refuse((*place, "then", REFUSED), f"then.{REFUSED}: nothing is expected", fix)
    columns = _list_columns(contract)
    given = _parse_run(contract, (*place, "given"), test["given"])
    for topic, entry in contract.topics.items():
        if entry.pattern is not None and not given.get(topic):
            fix = f"give a record of a topic in Kafka that its pattern matches: {entry.pattern}"
            _refuse((*place, "given"), f"given: no record of '{topic}', which has a pattern", fix)
    return ContractTest(
        name,
        (given, *(_parse_run(contract, at, run) for at, run in zip(places, later, strict=True))),
        {
            table: _parse_rows((*place, "then", table), columns, rows)
            for table, rows in then.items()
            if table not in reserved
        },
        {
            topic: _parse_rows((*place, "then", REFUSED, topic), dict.fromkeys(contract.topics, REFUSED_COLUMNS), rows)
            for topic, rows in refused.items()
        },
        error if isinstance(error, str) else None,
        place,
    )


def _list_columns(contract: Contract) -> dict[str, tuple[str, ...]]:
    """Return the columns of each table that a test can name: all but its system period."""
    shapes = {name: shape for name, shape in list_shapes(contract).items() if name not in contract.inputs}
    closed = {"windows": ("windowClosed",)}
    return {n: (*shape.columns, *PERIODS[shape.kind], *closed.get(shape.kind, ())) for n, shape in shapes.items()}


def _parse_run(contract: Contract, place: FieldPath, value: ContractValue) -> dict[str, tuple[WrittenRecord, ...]]:
    run = _require_mapping(place, value)
    for name in run:
        if name not in contract.topics:
            what = "a table of another pipeline, not a topic" if name in contract.inputs else "not a topic"
            fix = suggest_nearest(name, contract.topics)
            _refuse((*place, name), f"'{name}' is {what} of {contract.pipeline}", fix)
    return {
        name: tuple(
            _parse_record((*place, name, n), record, contract.topics[name])
            for n, record in enumerate(_require_list((*place, name), records))
        )
        for name, records in run.items()
    }


def _parse_record(place: FieldPath, value: ContractValue, entry: Topic) -> WrittenRecord:
    required = ("value", "timestamp", *(("topic",) if entry.pattern else ()))
    record = _require_fields(place, value, required, ("key", "partition", "headers"))
    partition, headers, topic = record.get("partition", 0), record.get("headers") or {}, record.get("topic")
    if not isinstance(partition, int) or isinstance(partition, bool) or not 0 <= partition < MOST_PARTITIONS:
        fix = f"write a number from 0 to {MOST_PARTITIONS - 1}"
        _refuse((*place, "partition"), f"partition: {format_value(partition)} is not a partition", fix)
    if not _is_headers(headers):
        fix = "write a name with a text, or null, for each: {origin: shop}"
        _refuse((*place, "headers"), "headers: these are not headers", fix)
    for part in ("key", "value"):
        _refuse_odd_names((*place, part), record.get(part))
    if entry.pattern and not entry.select_topics([str(topic)]):
        fix = "write the name in Kafka of a topic that it matches"
        _refuse((*place, "topic"), f"topic: the pattern {entry.pattern} does not match {format_value(topic)}", fix)
    try:
        timestamp = parse_moment(record["timestamp"])
    except ValueError as error:
        found, _, fix = str(error).partition("; ")
        _refuse((*place, "timestamp"), f"timestamp: {found}", fix)
    return WrittenRecord(
        record.get("key"), record["value"], timestamp, partition, headers, str(topic) if topic else None, place
    )


def _refuse_odd_names(place: FieldPath, value: ContractValue) -> None:
    """Refuse names of fields within a key or value that YAML does not read as text: a date, a number, a boolean."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            if not isinstance(name, str):
                found = f"the name of a field is {format_value(name)}, which YAML does not read as text"
                _refuse((*place, str(name)), f"{_format_place(place)}: {found}", "put the name in quotes")
            _refuse_odd_names((*place, name), inner)
    elif isinstance(value, list):
        for n, inner in enumerate(value):
            _refuse_odd_names((*place, n), inner)


def _is_headers(value: ContractValue) -> TypeGuard[Mapping[str, str | None]]:
    return isinstance(value, Mapping) and all(isinstance(text, str | None) for text in (*value, *value.values()))


def _parse_rows(place: FieldPath, columns: Mapping[str, tuple[str, ...]], value: ContractValue) -> Rows:
    """Return the expected rows of the table that `place` ends with; all of them name the same columns of it."""
    table = str(place[-1])
    if table not in columns:
        _refuse(place, f"there is no table '{table}'", suggest_nearest(table, columns))
    rows = tuple(_require_mapping((*place, n), row) for n, row in enumerate(_require_list(place, value)))
    for n, row in enumerate(rows):
        for column in row:
            if column not in columns[table]:
                fix = suggest_nearest(column, columns[table])
                _refuse((*place, n, column), f"'{table}' has no column '{column}' to compare", fix)
        if not row or row.keys() != rows[0].keys():
            fix = f"write the same columns in each row: {', '.join(rows[0]) or 'at least one'}"
            _refuse((*place, n), f"a row of '{table}' names {', '.join(row) or 'no column'}", fix)
    return rows


def _require_fields(
    place: FieldPath, value: ContractValue, required: tuple[str, ...], optional: tuple[str, ...]
) -> Mapping[str, ContractValue]:
    fields = _require_mapping(place, value)
    for name in fields:
        if name not in (*required, *optional):
            _refuse((*place, name), f"unknown field '{name}'", suggest_nearest(name, (*required, *optional)))
    for name in required:
        if name not in fields:
            _refuse(place, f"field '{name}' is missing", f"add '{name}:' here")
    return fields


def _require_mapping(place: FieldPath, value: ContractValue) -> Mapping[str, ContractValue]:
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        what = _format_place(place)
        _refuse(place, f"{what}: expected names with values, found {format_value(value)}", "write NAME: VALUE")
    return value


def _require_list(place: FieldPath, value: ContractValue) -> list[ContractValue]:
    if not isinstance(value, list):
        fix = "write a list, each element after a dash; [] for none"
        _refuse(place, f"{_format_place(place)}: expected a list, found {format_value(value)}", fix)
    return value


def _format_place(place: FieldPath) -> str:
    """Return a place within a test as text: `then.dollars`."""
    return ".".join(str(part) for part in place[1:]) or "a test"
