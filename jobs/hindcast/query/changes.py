"""Changes: how the answers of a table differ between two moments of knowledge, one line for each key and period.

    believed earlier    curry  8 [0, until changed)
    believed later      curry  8 [0, 4)    curry  10 [4, until changed)
    changed             curry  [4, until changed)  8 -> 10

Rows that another row replaces with the same values, as the first one does here, are no change. Without Spark.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Literal, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from duckdb import DuckDBPyConnection

from hindcast.bitemporal import predicates
from hindcast.bitemporal.predicates import ColumnBound, Question, sql_literal
from hindcast.common.errors import QueryError
from hindcast.common.python_values import list_values
from hindcast.contract import Contract
from hindcast.contract.shapes import PERIODS
from hindcast.contract.types import PERIOD_COLUMNS
from hindcast.plan import horizon, journal
from hindcast.query import cut_values, paired_rows, read
from hindcast.query.key_history import MASK
from hindcast.query.show import format_cell
from hindcast.store import duckdb_reader, row_reader, table_columns
from hindcast.store.duckdb_reader import EngineFactory, quote_name
from hindcast.store.tables import Table

Order = Literal["size", "time"]
"""Lines with the greatest difference of a number first, or in the order of key and time."""


ALL_KEYS = Question()


@dataclass(frozen=True)
class ChangeQuestion:
    """Which changes of a table: between what was known at `earlier` and at `later`, which may come in either order.

    `only_corrections`: only those of answers that were past (`tables.is_correction`). `first` and `most`: from which
    line on, and how many (None: all). `hidden`: columns by whose values lines are not ordered. `period`: only what was
    true from its start to before its end; of windows those that begin in it. `keys`: only those that this asks for.
    """

    earlier: datetime
    later: datetime
    only_corrections: bool = False
    order: Order = "size"
    first: int = 0
    most: int | None = None
    hidden: Collection[str] = ()
    period: tuple[datetime, datetime] | None = None
    keys: Question = ALL_KEYS

    def __post_init__(self) -> None:
        earlier, later = sorted((self.earlier, self.later))
        object.__setattr__(self, "earlier", earlier)
        object.__setattr__(self, "later", later)


class ChangeCounts(NamedTuple):
    """How many lines, keys, and lines of past answers there are in all."""

    lines: int
    keys: int
    corrections: int


class Changes(NamedTuple):
    """Some `lines` of a table's changes, and the counts of all.

    A line has `key`, a struct, and the period, `change` (added, changed, removed), `corrected`, the structs `before`
    and `after` with the values (null where there was, or is, no row), `source`, the places of the records of the new
    row, `former`, those of the old one, and `changedAt`, the known-at of the run that made it so.
    """

    table: Table
    lines: pa.Table
    counts: ChangeCounts


def find_moment_before(warehouse: str, pipeline: str, later: datetime) -> datetime:
    """Return the moment just before the known-at of the last run up to `later`: only that run has changed it since."""
    known_ats = (run.known_at for run in journal.read_completed_runs(warehouse, pipeline))
    last = max((at for at in known_ats if at <= later), default=later)
    return max(last, _FIRST + _MICROSECOND) - _MICROSECOND


_FIRST, _MICROSECOND = datetime.min.replace(tzinfo=UTC), timedelta(microseconds=1)


class SideLimit(NamedTuple):
    """The most rows of a side, the most bytes that these take with long values cut (cut_values.py), and the most that
    the lines take which are returned.
    """

    rows: int
    bytes_: int
    line_bytes: int


def read_changes(
    warehouse: str,
    contract: Contract,
    name: str,
    question: ChangeQuestion,
    open_engine: EngineFactory = duckdb_reader.open_engine,
    limit: SideLimit | None = None,
) -> Changes:
    """Return how the answers of a table differ between two moments of knowledge; with a `limit` long values are cut.

    Raises UnknownError for an unknown table, QueryError for a moment that cannot be answered (`read.query`), and if
    more rows were closed or opened than the limit allows.
    """
    with _pair_lines(warehouse, contract, name, question, open_engine, limit) as (engine, form, table):
        where = "WHERE corrected" if question.only_corrections else ""
        # By hashes of 64 bits: two of a million keys have the same one in one of many million tables.
        counted = f"SELECT count(*), count(DISTINCT h), count(*) FILTER (corrected) FROM pairs {where}"  # noqa: S608
        counts = ChangeCounts(*engine.sql(counted).fetchall()[0])
        order = "size DESC, " if question.order == "size" else ""
        most = "" if question.most is None else f"LIMIT {question.most:d}"
        chosen = _choose_pairs(engine, question, where)
        lines = engine.sql(
            f"SELECT {form.line_columns} FROM ({LINES.format(pairs=chosen)}) "  # noqa: S608
            f"ORDER BY {order}k, p0, p1, i, change {most} OFFSET {question.first:d}"
        ).to_arrow_table()
    if limit is not None and lines.nbytes > limit.line_bytes:
        raise _describe_excess(f"these lines take over {limit.line_bytes >> 20:,} MiB", table)
    return Changes(table, lines, counts)


def _choose_pairs(engine: DuckDBPyConnection, question: ChangeQuestion, where: str) -> str:
    """Return the query of the pairs among which the asked lines are: those of the greatest sizes, or all."""
    pairs = f"SELECT * FROM pairs {where}"  # noqa: S608  # ours
    if question.order != "size" or not question.most:
        return pairs
    last = question.first + question.most - 1
    found = engine.sql(f"SELECT size FROM ({pairs}) ORDER BY size DESC LIMIT 1 OFFSET {last:d}").fetchall()  # noqa: S608
    return f"SELECT * FROM ({pairs}) WHERE size >= '{found[0][0]}'::DOUBLE" if found else pairs  # noqa: S608


LINES = """
    SELECT coalesce(a.k, b.k) AS k, coalesce(a.i, b.i) AS i, pairs.p0, pairs.p1, a.v AS before, b.v AS after,
           b.s AS source, a.s AS former, corrected, size,
           coalesce(b.opened, a.closed) AS "changedAt",
           CASE WHEN o IS NULL THEN 'added' WHEN n IS NULL THEN 'removed' ELSE 'changed' END AS change
    FROM ({pairs}) AS pairs LEFT JOIN old AS a ON a.rowid = o LEFT JOIN new AS b ON b.rowid = n
"""
"""The query of all lines of some `pairs` (paired_rows.py), with the columns of `ComparedColumns.line_columns`."""


def count_changes(warehouse: str, contract: Contract, question: ChangeQuestion) -> dict[str, ChangeCounts]:
    """Return how many lines, keys and past answers each topic and view of a pipeline has; none of those without."""
    asked = replace(question, first=0, most=0)
    names = (*contract.topics, *contract.views)
    counts = {name: read_changes(warehouse, contract, name, asked).counts for name in names}
    return {name: it for name, it in counts.items() if it.lines}


def list_counts(counts: Mapping[str, ChangeCounts]) -> pa.Table:
    """Return a row for each table, with the columns `table`, `changes`, `keys` and `pastAnswers`."""
    names = ("changes", "keys", "pastAnswers")
    rows = [{"table": table, **dict(zip(names, it, strict=True))} for table, it in counts.items()]
    return pa.Table.from_pylist(rows, pa.schema([("table", pa.string()), *((name, pa.int64()) for name in names)]))


def count_lines(
    warehouse: str,
    contract: Contract,
    name: str,
    question: ChangeQuestion,
    open_engine: EngineFactory = duckdb_reader.open_engine,
) -> dict[datetime, int]:
    """Return how many lines there are by `changedAt`."""
    with _pair_lines(warehouse, contract, name, question, open_engine) as (engine, _, _):
        lines = LINES.format(pairs="FROM pairs")
        return dict(engine.sql(f'SELECT "changedAt", count(*) FROM ({lines}) GROUP BY "changedAt"').fetchall())  # noqa: S608


@contextmanager
def _pair_lines(
    warehouse: str,
    contract: Contract,
    name: str,
    question: ChangeQuestion,
    open_engine: EngineFactory = duckdb_reader.open_engine,
    limit: SideLimit | None = None,
) -> Iterator[tuple[DuckDBPyConnection, ComparedColumns, Table]]:
    """Yield an engine whose table `pairs` has the changes of a table (paired_rows.py), with its columns; the arguments
    and errors are those of `read_changes`.
    """
    table, delta_table, form = open_compared(warehouse, contract, name, question)
    with row_reader.refuse_broken_files(table), open_engine(delta_table) as engine:
        for side, condition in list_sides(question).items():
            column = "systemTo" if side == "old" else "systemFrom"
            bounds = [ColumnBound(column, least=question.earlier, most=question.later), *form.key_bounds]
            duckdb_reader.register_rows(engine, delta_table, bounds)
            if limit is not None:
                _refuse_many(engine, condition, limit, table)
            columns = "*" if limit is None else cut_values.cut_columns(engine)
            rows = f"SELECT {columns} FROM rows WHERE {condition} AND {form.kept_condition}"  # noqa: S608  # literals, quoted names
            engine.execute(f"CREATE TEMP TABLE {side} AS SELECT {form.columns} FROM ({rows})")  # noqa: S608
        size = form.format_size(question.hidden) if question.order == "size" else "0"
        paired_rows.pair_rows(engine, table.kind, size)
        yield engine, form, table


def list_sides(question: ChangeQuestion) -> dict[str, str]:
    """Return the SQL conditions of the `old` rows, current at the earlier moment only, and of the `new` ones."""
    since, until = sql_literal(question.earlier), sql_literal(question.later)
    closed = f'"systemFrom" <= {since} AND "systemTo" > {since} AND "systemTo" <= {until}'
    opened = f'"systemFrom" > {since} AND "systemFrom" <= {until} AND ("systemTo" IS NULL OR "systemTo" > {until})'
    return {"old": closed, "new": opened}


def open_compared(
    warehouse: str, contract: Contract, name: str, question: ChangeQuestion
) -> tuple[Table, DeltaTable, ComparedColumns]:
    """Return a table that can answer for both moments, opened, with its columns as SQL."""
    start, end = question.period or (None, None)
    last = None if end is None else end - _MICROSECOND
    for moment in (question.earlier, question.later):
        asked = Question(known_at=moment, from_time=start, to_time=last)
        table, delta_table = read.open_answerable(warehouse, contract, name, asked)
    trimmed = horizon.read_horizon(table, delta_table)
    since = start or (trimmed.moment if trimmed else None)
    return table, delta_table, ComparedColumns(table, delta_table, question, since, end)


def _refuse_many(engine: DuckDBPyConnection, condition: str, limit: SideLimit, table: Table) -> None:
    """Raise QueryError if more of the registered `rows` meet a condition than a limit allows, or larger ones."""
    some = f"(SELECT * FROM rows WHERE {condition} LIMIT {limit.rows + 1})"  # noqa: S608  # literals, quoted names
    ((count,),) = engine.sql(f"SELECT count(*) FROM {some}").fetchall()  # noqa: S608
    if count <= limit.rows and cut_values.measure_rows(engine, engine.sql("FROM rows").columns, some) <= limit.bytes_:
        return
    raise _describe_excess(f"over {limit.rows:,} rows, or {limit.bytes_ >> 20:,} MiB, have changed", table)


def describe_less(table: str) -> str:
    """Return what to do where more has changed in a table than is read."""
    return f"choose moments with less between them, or hindcast diff {table}"


def _describe_excess(found: str, table: Table) -> QueryError:
    name = f"{table.pipeline}.{table.name}"
    return QueryError(found, where=name, fix=describe_less(name))


def flatten_lines(lines: pa.Table, hidden: Collection[str] = ()) -> pa.Table:
    """Return lines without structs and lineage: of each value `x` the columns `x_before` and `x_after`.

    Values of `hidden` columns are masked.
    """
    columns = _list_first_columns(lines)
    sides = {side: lines.column(side).combine_chunks() for side in ("before", "after")}
    for name in (field.name for field in lines.schema.field("before").type):
        for side, values in sides.items():
            is_hidden = name in hidden
            shown = pa.array([MASK] * lines.num_rows, pa.string()) if is_hidden else pc.struct_field(values, name)
            columns.append((f"{name}_{side}", shown))
    return _build_table(columns)


def describe_lines(lines: pa.Table) -> pa.Table:
    """Return lines for people: of each value one text, where it differs `10.00 -> 9.50`."""
    columns = _list_first_columns(lines)
    sides = zip(*(list_values(lines.column(side)) for side in ("before", "after")), strict=True)
    pairs = [(before or after, after or before) for before, after in sides]
    for name in (field.name for field in lines.schema.field("before").type):
        texts = [[format_cell(side[name]) or '""' for side in pair] for pair in pairs]
        cells = [new if old == new else f"{old} -> {new}" for old, new in texts]
        columns.append((name, pa.array(cells, pa.string())))
    return _build_table(columns)


_NamedColumn: TypeAlias = tuple[str, pa.Array | pa.ChunkedArray]


def _list_first_columns(lines: pa.Table) -> list[_NamedColumn]:
    """Return the columns of the key, of the periods, and `change`."""
    key = lines.column("key").combine_chunks()
    own = [(field.name, pc.struct_field(key, field.name)) for field in key.type]
    return own + [(name, lines.column(name)) for name in lines.column_names if name in (*PERIOD_COLUMNS, "change")]


def _build_table(columns: Sequence[_NamedColumn]) -> pa.Table:
    """Return a table of these columns; a name that an earlier one has gets an underscore."""
    names: list[str] = []
    for name, _ in columns:
        while name in names:
            name += "_"  # noqa: PLW2901  # until it is unique
        names.append(name)
    return pa.table([values for _, values in columns], names)


class ComparedColumns:
    """The columns of a table as SQL: k, a struct of its key; p0 and p1, its periods; v, its values; s, its sources."""

    def __init__(
        self,
        table: Table,
        delta_table: DeltaTable,
        question: ChangeQuestion,
        since: datetime | None,
        until: datetime | None,
    ) -> None:
        self._table, self._periods = table, PERIODS[table.kind]
        self._since, self._until = (None if moment is None else sql_literal(moment) for moment in (since, until))
        fields, shown = (
            pa.schema(delta_table.schema().to_arrow()),
            table_columns.list_columns(table, delta_table, question.later),
        )
        self._keys, self._key_types = question.keys, {name: fields.field(name).type for name in table.key}
        own = [field for field in fields if field.name in shown and field.name not in PERIOD_COLUMNS]
        self._values = [field for field in own if field.name not in table.key]
        self._sources = [name for name in fields.names if name.startswith("_") and name != "_belief"]

    @property
    def kept_condition(self) -> str:
        """The condition of rows that are compared: of the keys and the period that are asked for, or that a trim has
        left on both sides, those that are true at its horizon or later.
        """
        start, conditions = quote_name(self._periods[0]), []
        if self._since is not None:
            is_version = self._table.kind == "versions"
            ended = f'("validTo" IS NULL OR "validTo" > {self._since})' if is_version else f"{start} >= {self._since}"
            conditions.append(ended)
        if self._until is not None:
            conditions.append(f"{start} < {self._until}")
        return " AND ".join([*conditions, *predicates.key_conditions(self._keys, self._key_types)]) or "true"

    @property
    def key_bounds(self) -> list[ColumnBound]:
        """The bounds of the key's columns, to skip files."""
        return predicates.key_bounds(self._keys, self._key_types)

    @property
    def columns(self) -> str:
        """What is read of the rows of a side; versions are those of the compared period alone."""
        start, end = map(quote_name, (self._periods[0], self._periods[-1]))
        if self._since is not None and self._table.kind == "versions":
            start = f"greatest({start}, {self._since})"
        if self._until is not None and self._table.kind == "versions":
            end = f"least(coalesce({end}, 'infinity'), {self._until})"
        parts = {"k": self._table.key, "v": [field.name for field in self._values], "s": self._sources}
        packed = [f"{pack_columns(names)} AS {alias}" for alias, names in parts.items()]
        identity = [name for name in self._table.identity if name not in self._table.key]
        run = ['"systemFrom" AS opened', '"systemTo" AS closed']
        key = f"hash({pack_columns(self._table.key)}) AS h"
        return ", ".join([*packed, key, f"{start} AS p0", f"{end} AS p1", f"{pack_columns(identity)} AS i", *run])

    @property
    def line_columns(self) -> str:
        """What is returned of a line."""
        periods = [f"p{n} AS {quote_name(name)}" for n, name in enumerate(self._periods)]
        return ", ".join(
            ["k AS key", *periods, "change", "corrected", "before", "after", "source", "former", "changedAt"]
        )

    @property
    def number_columns(self) -> dict[str, pa.DataType]:
        """The values that are numbers, with their types."""
        return {field.name: field.type for field in self._values if _is_number(field.type)}

    def format_size(self, hidden: Collection[str]) -> str:
        """Return the greatest difference of a number between the rows `a` and `b`, by which lines are ordered."""
        numbers = [name for name in self.number_columns if name not in hidden]
        sides = [[f"coalesce({side}.v.{quote_name(it)}, 0)::DOUBLE" for side in ("b", "a")] for it in numbers]
        differences = ", ".join(f"abs({new} - {old})" for new, old in sides)
        return f"greatest({differences})" if sides else "0"


def pack_columns(names: Sequence[str]) -> str:
    """Return the SQL of a struct of some columns."""
    listed = ", ".join(f"{quote_name(name)} := {quote_name(name)}" for name in names)
    return f"struct_pack({listed or 'nothing := NULL'})"


def _is_number(kind: pa.DataType) -> bool:
    return any(is_type(kind) for is_type in (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal))
