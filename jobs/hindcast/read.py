"""Reading tables back: what was true then, and what was believed then. `questions` says what both mean.

    read.query(warehouse, contract, "menu", Question(key=["curry"], as_of=moment))             # Arrow, without Spark
    read.frame(spark, warehouse, contract, "menu", Question(from_key=["a"], to_key=["c"]))     # a Spark DataFrame

From Spark SQL: `functions`. Rows have the user's columns and the periods; validFrom (timestamp) is when a row became
true, systemFrom when it was learnt. Columns that the contract has dropped since are there as known before. Windows have
`windowClosed` besides: whether they take no further event.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from deltalake import DeltaTable

from hindcast import horizon, questions, show
from hindcast.contracts import Contract
from hindcast.delta import at_hand, contents, scan, store_formats, tables
from hindcast.delta.tables import Table
from hindcast.errors import QueryError, UnknownError, nearest
from hindcast.planning import journal
from hindcast.questions import Bound, Question

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EVERYTHING = Question()
"""Asks for what is true now, as known at the last completed run; of events, for all."""


def query(warehouse: str, contract: Contract, name: str, question: Question = EVERYTHING) -> pa.Table:
    """The rows of a table that answer a question; in the order of time, then of keys, if it asks for none.

    QueryError for an unknown table, a key that is none, a known-at that cannot be answered yet (`answerable`),
    or a moment before the table's horizon (horizon.py).
    """
    asked = _Asked.of(warehouse, contract, name, question)
    return asked.answered(asked.condition, asked.bounds, question.order, asked.closed)


def frame(
    spark: SparkSession, warehouse: str, contract: Contract, name: str, question: Question = EVERYTHING
) -> DataFrame:
    """The same rows and columns as a Spark DataFrame, classic or Connect; in no order if the question asks for none."""
    from pyspark.sql import functions as F

    asked = _Asked.of(warehouse, contract, name, question)
    rows = contents.load(spark, asked.table).where(F.expr(questions.spark(asked.condition)))
    if question.order:
        rows = rows.orderBy(
            *(
                F.col(c).desc_nulls_first() if down else F.col(c).asc_nulls_last()
                for c, down in asked.ordering(question.order)
            )
        )
    return rows.select(*asked.columns, *(F.expr(questions.spark(text)) for text in asked.closed))


def history(
    warehouse: str, contract: Contract, name: str, *, key: Sequence[Any] | None = None, run: int | None = None
) -> pa.Table:
    """Every row ever believed about a key, with both periods, by valid time and then by system time; with the columns
    that the contract has dropped. With `run`, by key: those that it has closed and opened, what it changed, before and
    after.
    """
    at = moment_of(warehouse, contract.pipeline, f"run:{run}") if run is not None else None
    asked = replace(
        _Asked.of(warehouse, contract, name, Question(key=key, known_at=at)), known=datetime.min.replace(tzinfo=UTC)
    )
    if at is None:
        return asked.believed()
    moment = questions.literal(at)
    return asked.believed(only=f"(systemFrom = {moment} OR systemTo = {moment})", order=("key",))


def of_key(table: Table, found: DeltaTable, key: Sequence[Any]) -> pa.Table:
    """As `history`, of a table that is there and whatever its runs are, with the places of the records besides."""
    asked = _Asked(table, found, Question(key=key), datetime.now(UTC))
    return asked.believed([f'"{column}"' for column in asked.lineage])


def locate(warehouse: str, contract: Contract, name: str) -> Table:
    """The table of a topic or view of the contract."""
    names = [*contract.topics, *contract.views]
    if name not in names:
        raise UnknownError(f"no table '{name}'", where=contract.pipeline, mend=nearest(name, names))
    return tables.located(warehouse, contract, name)


def last_known_at(warehouse: str, pipeline: str) -> datetime:
    """The known-at of the last completed run."""
    completed = [run.known_at for run in journal.completed(warehouse, pipeline)]
    if not completed:
        raise QueryError(
            "no run has been completed yet", where=f"{warehouse}/{pipeline}", mend=f"hindcast run {pipeline}"
        )
    return max(completed)


def answerable(warehouse: str, pipeline: str, moment: datetime) -> None:
    """Raises QueryError for a known-at whose answer may still change: in the future, or under a run that has not ended.

    Before the first run nothing was known: that is answered, with no rows.
    """
    last = last_known_at(warehouse, pipeline)
    if moment > max(last, datetime.now(UTC)):
        raise QueryError(
            f"what will be known at {moment.isoformat()} is not known yet",
            where=pipeline,
            mend=f"ask up to now; the last completed run is known at {last.isoformat()}",
        )
    for run in journal.runs(warehouse, pipeline):
        if not run.finished and run.known_at <= moment:
            raise QueryError(
                f"run {run.number} ({run.run_id}) has not ended: what is known at {moment.isoformat()} is not settled",
                where=pipeline,
                mend=f"ask as known before {run.known_at.isoformat()}, or when the run has ended",
            )


def moment_of(warehouse: str, pipeline: str, text: str) -> datetime:
    """A moment as a user writes it: an ISO time (UTC if it has no offset), or `run:3` for the known-at of a run."""
    if text.startswith("run:"):
        known = {str(run.number): run.known_at for run in journal.runs(warehouse, pipeline)}
        number = text.removeprefix("run:")
        if number not in known:
            raise UnknownError(f"no run '{number}'", where=pipeline, mend=nearest(number, known))
        return known[number]
    try:
        moment = datetime.fromisoformat(text)
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):
        raise QueryError(
            f"'{text}' is not a moment", mend="write 2026-01-01, 2026-01-01T00:03:00+00:00 or run:1"
        ) from None


def key_of(table: Table, text: str) -> list[Any]:
    """A key as a user writes it: the text of its one column, or a JSON object of all."""
    if len(table.key) == 1:
        return [text]
    given = _object(text)
    if given is None or set(given) != set(table.key):
        raise QueryError(f"'{text}' is not a key of {table.name}", mend=f"write it as JSON: {_example(table)}")
    return [given[column] for column in table.key]


def key_text(table: Table, key: Sequence[Any]) -> str:
    """A key as `key_of` takes it."""
    if len(table.key) == 1:
        return show.text(key[0])
    return json.dumps(dict(zip(table.key, map(show.plain, key), strict=True)))


def bound_of(table: Table, text: str) -> list[Any]:
    """A bound of a range of keys as a user writes it: the first column's text, or a JSON object of the first few."""
    given = _object(text) if len(table.key) > 1 else None
    if given is None:
        return [text]
    leading = table.key[: len(given)]
    if set(given) != set(leading):
        raise QueryError(
            f"'{text}' is not a bound of the keys of {table.name}",
            mend=f"name the first columns of the key, in JSON: {_example(table)}",
        )
    return [given[column] for column in leading]


@dataclass(frozen=True)
class _Asked:
    """A question to a table that is there."""

    table: Table
    found: DeltaTable
    question: Question
    known: datetime

    @classmethod
    def of(cls, warehouse: str, contract: Contract, name: str, question: Question) -> _Asked:
        table = locate(warehouse, contract, name)
        known = question.known_at or last_known_at(warehouse, contract.pipeline)
        if question.known_at:
            answerable(warehouse, contract.pipeline, known)
        found = at_hand.opened(table)
        if found is None:
            raise QueryError("the table has not been published yet", where=table.path, mend="run the pipeline first")
        horizon.refuse(table, horizon.of(table, found), question, known)
        since = found.metadata().configuration.get(store_formats.SINCE)
        if since is not None and known < datetime.fromisoformat(since):
            raise QueryError(
                f"what was believed before {since} was given up by a downgrade",
                where=table.path,
                mend="ask as known at that moment or later; or read an older Delta version of the table, if it is left",
            )
        return cls(table, found, question, known)

    @property
    def schema(self) -> pa.Schema:
        return pa.schema(self.found.schema().to_arrow())

    @property
    def columns(self) -> list[str]:
        return tables.columns(self.table, self.found, self.known)

    @property
    def key(self) -> Mapping[str, pa.DataType]:
        return {column: self.schema.field(column).type for column in self.table.key}

    @property
    def lineage(self) -> list[str]:
        """The places of the records that rows come from."""
        return [c for c in self.schema.names if c.startswith("_") and c != "_belief"]

    def ordering(self, order: Sequence[str]) -> list[tuple[str, bool]]:
        return questions.ordering(self.table.kind, self.table.key, self.lineage, order)

    @property
    def condition(self) -> str:
        return questions.conditions(self.table.kind, self.question, self.key, self.known)

    @property
    def bounds(self) -> list[Bound]:
        return questions.bounds(self.table.kind, self.question, self.key, self.known)

    @property
    def closed(self) -> list[str]:
        """The column `windowClosed` of windows, as the last completed run before the known-at reported it."""
        if self.table.kind != "windows":
            return []
        up_to = None
        for run in journal.completed(self.table.warehouse, self.table.pipeline):
            if run.known_at <= self.known:
                up_to = run.detail.get("tables", {}).get(self.table.name, {}).get("closedUpTo")
        return [questions.closed(questions.literal(datetime.fromisoformat(up_to)) if up_to else "NULL")]

    def believed(self, besides: Sequence[str] = (), only: str = "true", order: Sequence[str] = ()) -> pa.Table:
        """Every row of the key that was ever believed, and that meets a condition."""
        condition = " AND ".join([*questions.keys(self.question, self.key), only])
        return self.answered(condition, questions.key_bounds(self.question, self.key), order, besides)

    def answered(
        self, condition: str, bounds: Sequence[Bound], order: Sequence[str] = (), besides: Sequence[str] = ()
    ) -> pa.Table:
        """The rows that meet a condition, by way of DuckDB; they lie within `bounds`."""
        shown = ", ".join([*(f'"{column}"' for column in self.columns), *besides])
        by = ", ".join(
            f'"{column}" {"DESC NULLS FIRST" if down else "ASC NULLS LAST"}' for column, down in self.ordering(order)
        )
        with contents.refusing_broken_files(self.table), scan.engine() as engine:
            scan.register(engine, self.found, bounds)
            text = f"SELECT {shown} FROM rows WHERE {condition} ORDER BY {by}"  # noqa: S608  # literals of questions
            return engine.sql(text).to_arrow_table()


def _object(text: str) -> dict[str, Any] | None:
    try:
        given = json.loads(text, parse_float=str)
    except ValueError:
        return None
    return given if isinstance(given, dict) else None


def _example(table: Table) -> str:
    return json.dumps(dict.fromkeys(table.key, "..."))
