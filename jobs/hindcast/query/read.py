"""Read published tables: what was true at a moment, as known at a moment. `bitemporal.predicates` defines both.

    read.query(warehouse, contract, "menu", Question(key=["curry"], as_of=moment))             # Arrow, without Spark
    read.frame(spark, warehouse, contract, "menu", Question(from_key=["a"], to_key=["c"]))     # a Spark DataFrame

For Spark SQL see `spark_functions`. Rows have the user's columns and the periods; validFrom (timestamp) is when a row
became true, systemFrom when it became known. Columns that the contract has since dropped appear in answers from before.
Windows also have `windowClosed`: whether they take no further event.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pyarrow as pa
from deltalake import DeltaTable
from duckdb import DuckDBPyConnection

from hindcast.bitemporal import predicates
from hindcast.bitemporal.predicates import ColumnBound, Question
from hindcast.common.column_values import ColumnValue
from hindcast.common.errors import QueryError, UnknownError, suggest_nearest
from hindcast.common.json_values import JsonObject, JsonValue
from hindcast.contract import Contract
from hindcast.plan import closes, horizon, journal, rehearsals
from hindcast.plan.runs import Stopped, find_last_completed
from hindcast.query import cut_values, first_rows, show
from hindcast.query.first_rows import WideRowsError
from hindcast.store import duckdb_reader, row_reader, table_columns, tables
from hindcast.store.duckdb_reader import EngineFactory
from hindcast.store.tables import Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CURRENT_QUESTION = Question()
"""What is true now, as known at the last completed run; for events, all of them."""


def query(warehouse: str, contract: Contract, name: str, question: Question = CURRENT_QUESTION) -> pa.Table:
    """Return the rows of a table that answer a question, as Arrow; in the order of time, then key, unless it has one.

    Raises UnknownError for an unknown table. Raises QueryError for an invalid key, for a known-at that cannot be
    answered yet (`refuse_unanswerable`), and for a moment before the table's horizon (plan/horizon.py).
    """
    reader = _TableReader.open_reader(warehouse, contract, name, question)
    return reader.read_rows(reader.condition, reader.bounds, question.order, reader.closed_columns)


class LargeRowsError(QueryError):
    """Rows that are too large to be shown."""


def read_first_rows(
    warehouse: str,
    contract: Contract,
    name: str,
    question: Question,
    most: int,
    most_bytes: int,
    open_engine: EngineFactory,
) -> tuple[pa.Table, int]:
    """Return the first rows of `query`, by key and time, and how many it has in all.

    With the places of their records. Long values are cut (cut_values.py). Raises what `query` and the engine raise, and
    LargeRowsError if the rows take more than `most_bytes` then.
    """
    reader = _TableReader.open_reader(warehouse, contract, name, question)
    order, names = reader.order_columns(("key",)), [*reader.columns, *reader.lineage]
    with row_reader.refuse_broken_files(reader.table), open_engine(reader.delta_table) as engine:
        duckdb_reader.register_rows(engine, reader.delta_table, reader.bounds)
        try:
            chosen = first_rows.choose_first_rows(engine, reader.condition, order, most)
        except WideRowsError as error:
            raise LargeRowsError(str(error), where=reader.table.path) from None
        if cut_values.measure_rows(engine, names, chosen) > most_bytes:
            found = f"the first {most} rows have more than {most_bytes >> 20} MiB"
            raise LargeRowsError(found, where=reader.table.path)
        rows = first_rows.read_chosen_rows(engine, chosen, names, order, most)
        counted = engine.sql(f"SELECT count(*) FROM rows WHERE {reader.condition}")  # noqa: S608  # literals of questions
        ((total,),) = counted.fetchall()
    return rows, total


def frame(
    spark: SparkSession, warehouse: str, contract: Contract, name: str, question: Question = CURRENT_QUESTION
) -> DataFrame:
    """Return the rows and columns of `query` as a Spark DataFrame, classic or Connect.

    They are unordered unless the question has an order.
    """
    from pyspark.sql import functions as F

    reader = _TableReader.open_reader(warehouse, contract, name, question)
    rows = row_reader.load_rows(spark, reader.table).where(F.expr(predicates.translate_to_spark(reader.condition)))
    if question.order:
        order = reader.order_columns(question.order)
        rows = rows.orderBy(*(F.col(c).desc_nulls_first() if down else F.col(c).asc_nulls_last() for c, down in order))
    return rows.select(
        *reader.columns, *(F.expr(predicates.translate_to_spark(text)) for text in reader.closed_columns)
    )


def history(
    warehouse: str, contract: Contract, name: str, *, key: Sequence[ColumnValue] | None = None, run: int | None = None
) -> pa.Table:
    """Return every row ever known of a key, with both periods and dropped columns; by valid time, then system time.

    With `run`, return the rows that this run opened or closed, by key: what it changed, before and after.
    """
    known_at = moment_of(warehouse, contract.pipeline, f"run:{run}") if run is not None else None
    reader = replace(
        _TableReader.open_reader(warehouse, contract, name, Question(key=key, known_at=known_at), all_known=True),
        known_at=datetime.min.replace(tzinfo=UTC),
    )
    if known_at is None:
        return reader.read_history()
    moment = predicates.sql_literal(known_at)
    return reader.read_history(only=f"(systemFrom = {moment} OR systemTo = {moment})", order=("key",))


def read_key_rows(
    table: Table,
    delta_table: DeltaTable,
    key: Sequence[ColumnValue],
    engine: DuckDBPyConnection,
    most: int,
    most_bytes: int,
) -> pa.Table:
    """Return the first `most` rows of the `history` of a key in an open table, with the places of the records.

    It does not matter whether runs have ended. Long values are cut (cut_values.py). QueryError if all rows of the key
    take more than `most_bytes`. The caller closes the engine.
    """
    reader = _TableReader(table, delta_table, Question(key=key), datetime.now(UTC), most, most_bytes)
    return reader.read_history([f'"{column}"' for column in reader.lineage], engine=engine)


def open_answerable(warehouse: str, contract: Contract, name: str, question: Question) -> tuple[Table, DeltaTable]:
    """Return a table, opened, of which a question can be answered; raise what `query` raises if it cannot."""
    reader = _TableReader.open_reader(warehouse, contract, name, question)
    return reader.table, reader.delta_table


def locate_table(warehouse: str, contract: Contract, name: str) -> Table:
    """Return the table of a topic or view of the contract; raise UnknownError if it has none of that name."""
    names = [*contract.topics, *contract.views]
    if name not in names:
        raise UnknownError(f"no table '{name}'", where=contract.pipeline, fix=suggest_nearest(name, names))
    return tables.locate_table(warehouse, contract, name)


def read_last_known_at(warehouse: str, pipeline: str) -> datetime:
    """Return the known-at of the last completed run; raise QueryError if there is none."""
    completed = [run.known_at for run in journal.read_completed_runs(warehouse, pipeline)]
    if not completed:
        is_rehearsed = rehearsals.is_open(journal.read_runs(warehouse, pipeline))
        fix = "repeat the hindcast rehearse that began it" if is_rehearsed else f"hindcast run {pipeline}"
        raise QueryError("no run has been completed yet", where=f"{warehouse}/{pipeline}", fix=fix)
    return max(completed)


def refuse_unanswerable(warehouse: str, pipeline: str, moment: datetime) -> None:
    """Raise QueryError for a known-at whose answer may still change: in the future, or with a run before it unfinished.

    Before the first run nothing was known: the answer has no rows.
    """
    last, past = read_last_known_at(warehouse, pipeline), journal.read_runs(warehouse, pipeline)
    if moment > last and rehearsals.is_open(past):
        found = f"a rehearsal may go on: what was known at {moment.isoformat()} is not settled"
        fix = f"use a time up to {last.isoformat()}, or end the rehearsal: hindcast rehearse {pipeline} --end"
        raise QueryError(found, where=pipeline, fix=fix)
    if moment > max(last, datetime.now(UTC)):
        raise QueryError(
            f"what will be known at {moment.isoformat()} is not known yet",
            where=pipeline,
            fix=f"use a time up to now; the last completed run is known at {last.isoformat()}",
        )
    for run in past:
        if isinstance(run.outcome, Stopped) and run.known_at <= moment:
            before = find_last_completed([it for it in past if it.known_at < run.known_at])
            use = f"use run:{before.number} for what was known before it" if before else "use an earlier known-at"
            raise QueryError(
                f"run {run.number} ({run.run_id}) was stopped at {run.outcome.table or 'a table'} and did not "
                f"publish it: what is known at {moment.isoformat()} is not settled",
                where=pipeline,
                fix=f"{use}; the next run settles it: hindcast run {pipeline}",
            )
        if not run.is_finished and run.known_at <= moment:
            raise QueryError(
                f"run {run.number} ({run.run_id}) has not ended: what is known at {moment.isoformat()} is not settled",
                where=pipeline,
                fix=f"use a known-at before {run.known_at.isoformat()}, or wait until the run has ended",
            )


def refuse_forgotten(warehouse: str, contract: Contract, name: str) -> None:
    """Raise QueryError while a forgetting has not derived again what it removed of a table: rows known before are gone.

    It has if it is completed, or if a later run is that skipped no table.
    """
    past = journal.read_runs(warehouse, contract.pipeline)
    last = max((run.number for run in past if run.has_done_all_tables), default=0)
    for run in (run for run in past if run.number > last):
        if run.plan.erasure is not None and run.plan.erasure.removes_rows_of(contract, name):
            found = f"run {run.number} has removed rows that it forgets, and has not derived the table again"
            fix = f"hindcast run {contract.pipeline}"
            if run.state == "planned":  # no other run begins
                fix = (
                    f"repeat when it has ended; if it was killed, repeat the hindcast forget that began it, or abandon "
                    f"it: hindcast abandon {contract.pipeline}, then hindcast run {contract.pipeline}"
                )
            raise QueryError(found, where=f"{contract.pipeline}.{name}", fix=fix)


def moment_of(warehouse: str, pipeline: str, text: str) -> datetime:
    """Return the moment that a user wrote: an ISO time (UTC if it has no offset), or the known-at of a run, `run:3`, or
    of a close, `close:2026-Q3`.

    Raises UnknownError for an unknown run or close, and QueryError for an invalid timestamp.
    """
    if text.startswith(closes.PREFIX):
        return closes.find_close(warehouse, pipeline, text.removeprefix(closes.PREFIX)).known_at
    if text.startswith("run:"):
        known_ats = {str(run.number): run.known_at for run in journal.read_runs(warehouse, pipeline)}
        number = text.removeprefix("run:")
        if number not in known_ats:
            raise UnknownError(f"no run '{number}'", where=pipeline, fix=suggest_nearest(number, known_ats))
        return known_ats[number]
    try:
        moment = datetime.fromisoformat(text)
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):
        raise QueryError(
            f"'{text}' is not a valid timestamp",
            fix="write 2026-01-01, 2026-01-01T00:03:00+00:00, run:1 or close:NAME",
        ) from None


def find_period(warehouse: str, pipeline: str, *texts: str | None) -> tuple[datetime, datetime] | None:
    """Return the period, from its start to before its end, of the first close that is among moments of knowledge."""
    names = (text.removeprefix(closes.PREFIX) for text in texts if text is not None and text.startswith(closes.PREFIX))
    if (name := next(names, None)) is None:
        return None
    close = closes.find_close(warehouse, pipeline, name)
    return close.start, close.end


def parse_key(table: Table, text: str) -> list[JsonValue]:
    """Return the values of a key that a user wrote: the text of its only column, or of all its columns, in their order.

    Of several columns these are a JSON object, or texts with ` · ` (as the pages write them) or commas between.
    Raises QueryError if they are not exactly the key's columns.
    """
    if len(table.key) == 1:
        return [text]
    fields = _parse_object(text)
    if fields is not None and set(fields) == set(table.key):
        return [fields[column] for column in table.key]
    for separator in () if text.lstrip()[:1] in ("{", "[") else ("·", ","):
        parts = [part.strip() for part in text.split(separator)]
        if len(parts) == len(table.key) and all(parts):
            return [*parts]
    names = ", ".join(table.key)
    raise QueryError(
        f"'{text}' is not a key of {table.name}",
        fix=f"write its values ({names}) with commas between them, or as JSON: {_example_key(table)}",
    )


def format_key(table: Table, key: Sequence[ColumnValue]) -> str:
    """Return a key as `parse_key` takes it."""
    if len(table.key) == 1:
        return show.format_text(key[0])
    return json.dumps(dict(zip(table.key, map(show.plain_value, key), strict=True)))


def parse_key_bound(table: Table, text: str) -> list[JsonValue]:
    """Return a bound of a key range that a user wrote: the first column's text, or a JSON object of leading columns.

    Raises QueryError if the object has other columns.
    """
    fields = _parse_object(text) if len(table.key) > 1 else None
    if fields is None:
        return [text]
    leading = table.key[: len(fields)]
    if set(fields) != set(leading):
        raise QueryError(
            f"'{text}' is not a bound for keys of {table.name}",
            fix=f"write the leading columns of the key as JSON: {_example_key(table)}",
        )
    return [fields[column] for column in leading]


@dataclass(frozen=True)
class _TableReader:
    """An open table and a question, to read the rows that answer it.

    `most`: how many rows at most. With `most_bytes`, without most of long values; QueryError if they are more.
    """

    table: Table
    delta_table: DeltaTable
    question: Question
    known_at: datetime
    most: int | None = None
    most_bytes: int | None = None

    @classmethod
    def open_reader(
        cls, warehouse: str, contract: Contract, name: str, question: Question, *, all_known: bool = False
    ) -> _TableReader:
        table = locate_table(warehouse, contract, name)
        known_at = question.known_at or read_last_known_at(warehouse, contract.pipeline)
        if question.known_at:
            refuse_unanswerable(warehouse, contract.pipeline, known_at)
        if not all_known:
            refuse_forgotten(warehouse, contract, name)
        delta_table = tables.open_table(table)
        if delta_table is None:
            raise QueryError("the table has not been published yet", where=table.path, fix="run the pipeline first")
        horizon.refuse_question(table, horizon.read_horizon(table, delta_table), question, known_at)
        marks = tables.read_marks(delta_table)
        if marks is not None and tuple(marks["key"]) != table.key:
            raise QueryError(
                f"its key is {', '.join(marks['key'])}, and the contract's is {', '.join(table.key)}",
                where=table.path,
                fix="restore the key in the contract; or give the topic or view another name, and run it",
            )
        horizon.refuse_dropped(table, delta_table, known_at)
        return cls(table, delta_table, question, known_at)

    @property
    def schema(self) -> pa.Schema:
        return pa.schema(self.delta_table.schema().to_arrow())

    @property
    def columns(self) -> list[str]:
        return table_columns.list_columns(self.table, self.delta_table, self.known_at)

    @property
    def key(self) -> Mapping[str, pa.DataType]:
        return {column: self.schema.field(column).type for column in self.table.key}

    @property
    def lineage(self) -> list[str]:
        """The columns that hold the places of the records a row comes from."""
        return [c for c in self.schema.names if c.startswith("_") and c != "_belief"]

    def order_columns(self, order: Sequence[str]) -> list[tuple[str, bool]]:
        return predicates.order_columns(self.table.kind, self.table.key, self.lineage, order)

    @property
    def condition(self) -> str:
        return predicates.question_condition(self.table.kind, self.question, self.key, self.known_at)

    @property
    def bounds(self) -> list[ColumnBound]:
        return predicates.question_bounds(self.table.kind, self.question, self.key, self.known_at)

    @property
    def closed_columns(self) -> list[str]:
        """The column `windowClosed` of windows, as the last completed run before the known-at reported it."""
        if self.table.kind != "windows":
            return []
        past = journal.read_completed_runs(self.table.warehouse, self.table.pipeline)
        results = (run.results.get(self.table.name) for run in reversed(past) if run.known_at <= self.known_at)
        last = next(results, None)
        closed = predicates.sql_literal(last.closed_up_to) if last and last.closed_up_to else "NULL"
        return [predicates.window_closed_column(closed)]

    def read_history(
        self,
        extra: Sequence[str] = (),
        only: str = "true",
        order: Sequence[str] = (),
        engine: DuckDBPyConnection | None = None,
    ) -> pa.Table:
        """Return every row ever known of the key that meets the condition `only`; `extra`: more columns, as SQL."""
        condition = " AND ".join([*predicates.key_conditions(self.question, self.key), only])
        return self.read_rows(condition, predicates.key_bounds(self.question, self.key), order, extra, engine)

    def read_rows(
        self,
        condition: str,
        bounds: Sequence[ColumnBound],
        order: Sequence[str] = (),
        extra: Sequence[str] = (),
        engine: DuckDBPyConnection | None = None,
    ) -> pa.Table:
        """Return the rows within `bounds` that meet a condition, read by DuckDB; `extra`: more columns, as SQL.

        The caller closes an `engine` that it gives.
        """
        ordering = first_rows.format_order(self.order_columns(order))
        opened = duckdb_reader.open_engine(self.delta_table) if engine is None else nullcontext(engine)
        with row_reader.refuse_broken_files(self.table), opened as engine:
            duckdb_reader.register_rows(engine, self.delta_table, bounds)
            names = [f'"{column}"' for column in self.columns]
            if self.most_bytes is not None:
                self._refuse_large(engine, condition, self.most_bytes)
                names = [cut_values.cut_columns(engine, self.columns)]
            selected = ", ".join([*names, *extra])
            limit = "" if self.most is None else f" LIMIT {self.most}"
            text = f"SELECT {selected} FROM rows WHERE {condition} ORDER BY {ordering}{limit}"  # noqa: S608  # literals of questions
            return engine.sql(text).to_arrow_table()

    def _refuse_large(self, engine: DuckDBPyConnection, condition: str, most: int) -> None:
        """Raise QueryError if the registered rows that meet a condition take more bytes, with long texts cut."""
        if cut_values.measure_rows(engine, self.columns, f"rows WHERE {condition}") > most:
            found = f"the rows of the key have more than {most >> 20} MiB, which is more than a page reads"
            fix = f"hindcast history {self.table.pipeline}.{self.table.name} --key KEY"
            raise QueryError(found, where=self.table.path, fix=fix)


def _parse_object(text: str) -> JsonObject | None:
    try:
        value = json.loads(text, parse_float=str)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _example_key(table: Table) -> str:
    return json.dumps(dict.fromkeys(table.key, "..."))
