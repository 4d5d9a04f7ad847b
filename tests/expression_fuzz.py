"""Random expressions over edge values of every type, evaluated by Arrow and by Spark."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from hindcast.contract.parsing import ExpressionError
from hindcast.engine import arrow_expressions
from hindcast.engine.arrow_expressions import ColumnReference, EvaluationError, Expression
from hindcast.engine.arrow_translation import translate_expression

if TYPE_CHECKING:
    from collections.abc import Callable

TYPES = {
    "t": pa.int8(),
    "s": pa.int16(),
    "i": pa.int32(),
    "j": pa.int32(),
    "b": pa.int64(),
    "c": pa.decimal128(8, 2),
    "d": pa.decimal128(15, 4),
    "e": pa.decimal128(24, 6),
    "f": pa.float64(),
    "h": pa.float64(),
    "g": pa.bool_(),
    "k": pa.bool_(),
    "x": pa.string(),
    "y": pa.string(),
    "m": pa.date32(),
    "n": pa.date32(),
    "u": pa.timestamp("us", "UTC"),
    "v": pa.timestamp("us", "UTC"),
}
COLUMNS = {("a", name): ColumnReference(name, kind) for name, kind in TYPES.items()}
_EDGES: dict[str, list[object]] = {
    "int8": [0, 1, -1, 127, -128],
    "int16": [0, 1, -1, 32767, -32768, 7],
    "int32": [0, 1, -1, 2**31 - 1, -(2**31), 12],
    "int64": [0, 1, -1, 2**63 - 1, -(2**63), 2**53 + 1, 77],
    "decimal128(8, 2)": [Decimal(it) for it in ("0.00", "0.01", "-0.01", "999999.99", "-999999.99", "2.50", "1.25")],
    "decimal128(15, 4)": [Decimal(it) for it in ("0", "0.0005", "-0.0005", "99999999999.9999", "3.1415", "-2.5")],
    "decimal128(24, 6)": [Decimal(it) for it in ("0", "0.000001", "-999999999999999999.999999", "0.5", "1.005")],
    "double": [0.0, -0.0, 1.5, -2.25, 1e308, -1e308, 5e-324, math.nan, math.inf, -math.inf, 0.1, 2.0**53],
    "bool": [True, False],
    "string": ["", " ", "a", "abc", " b c ", "ABC", "ä", "ß", "\u0000", "x\ny", "日本", "😀b", "\tq", "ab%", "1"],
    "date32[day]": [date(1970, 1, 1), date(1969, 12, 31), date(1, 1, 1), date(9999, 12, 31), date(2024, 2, 29)],
    "timestamp[us, tz=UTC]": [
        datetime(1970, 1, 1, tzinfo=UTC),
        datetime(1970, 1, 1, tzinfo=UTC) - timedelta(microseconds=1),
        datetime(1, 1, 1, tzinfo=UTC),
        datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
        datetime(2024, 2, 29, 12, 30, 15, 250, tzinfo=UTC),
        datetime(1582, 10, 10, 3, tzinfo=UTC),
    ],
}


def build_rows(seed: int, count: int) -> pa.Table:
    """Return rows of edge values and nulls, most of them small in every second row, with their number in `row`."""
    chosen = random.Random(seed)  # noqa: S311

    def pick(kind: pa.DataType, row: int) -> object:
        values = _EDGES[str(kind)]
        return None if chosen.random() < 0.12 else chosen.choice(values[: 3 if row % 2 else len(values)])

    columns = {name: pa.array([pick(kind, n) for n in range(count)], kind) for name, kind in TYPES.items()}
    return pa.table(columns).append_column("row", pa.array(range(count), pa.int32()))


def write_expression(chosen: random.Random, depth: int = 3) -> str:
    """Return a random expression over `a`, of any type, with or without brackets."""
    return _Writer(chosen).write(chosen.choice([*_SORTS]), depth)


_SORTS = {
    "number": ["t", "s", "i", "j", "b", "c", "d", "e"],
    "double": ["f", "h"],
    "truth": ["g", "k"],
    "text": ["x", "y"],
    "date": ["m", "n"],
    "moment": ["u", "v"],
}
_LITERALS = {
    "number": ["0", "1", "-1", "2", "10", "0.5", "1.25", "-0.01", "100000", "3000000000", "007", "0.00"],
    "double": ["a.f", "a.h"],
    "truth": ["true", "false"],
    "text": ["'a'", "''", "' b'", "'ä'", "'it''s'"],
    "date": ["date '2024-02-29'", "date '1969-12-31'"],
    "moment": ["timestamp '2024-02-29 12:30:15'", "timestamp '1960-01-01 00:00:00.000001'"],
}


class _Writer:
    """Writes expressions of a sort, now and then of another."""

    def __init__(self, chosen: random.Random) -> None:
        self.chosen = chosen

    def write(self, sort: str, depth: int) -> str:
        pick = self.chosen
        if pick.random() < 0.03:
            sort = pick.choice([*_SORTS])
        if depth <= 0 or pick.random() < 0.15:
            if pick.random() < 0.3:
                return "null" if pick.random() < 0.1 else pick.choice(_LITERALS[sort])
            return f"a.{pick.choice(_SORTS[sort])}"
        forms: list[Callable[[int], str]] = getattr(self, f"_{sort}")()
        text = pick.choice([*forms, *self._any(sort)])(depth - 1)
        return f"({text})" if pick.random() < 0.5 else text

    def _any(self, sort: str) -> list[Callable[[int], str]]:
        w = self.write
        return [
            lambda d: f"coalesce({w(sort, d)}, {w(sort, d)})",
            lambda d: f"if({w('truth', d)}, {w(sort, d)}, {w(sort, d)})",
            lambda d: f"case when {w('truth', d)} then {w(sort, d)} else {w(sort, d)} end",
            lambda d: f"case {w('number', d)} when {w('number', d)} then {w(sort, d)} end",
            lambda d: f"{self.chosen.choice(['nullif', 'nvl', 'greatest', 'least'])}({w(sort, d)}, {w(sort, d)})",
        ]

    def _number(self) -> list[Callable[[int], str]]:
        w, pick = self.write, self.chosen.choice
        kinds = (
            "tinyint",
            "smallint",
            "int",
            "bigint",
            "decimal(10,2)",
            "decimal(20,3)",
            "decimal(5,0)",
            "decimal(38,6)",
        )
        parts = "year", "month", "day", "quarter", "dayofyear", "dayofweek", "weekday"
        return [
            *[lambda d: f"{w('number', d)} {pick(['+', '-', '*'])} {w('number', d)}"] * 3,
            lambda d: f"- {w('number', d)}",
            lambda d: f"abs({w('number', d)})",
            lambda d: f"round({w('number', d)}, {pick([0, 1, 2, 5])})",
            lambda d: f"round({w('number', d)})",
            lambda d: f"cast({w('number', d)} as {pick(kinds)})",
            lambda d: f"length({w('text', d)})",
            lambda d: f"{pick(parts)}({w(pick(['date', 'moment']), d)})",
            lambda d: f"{pick(['hour', 'minute', 'second'])}({w('moment', d)})",
            lambda d: f"extract({pick(['year', 'HOUR', 'day'])} from {w('moment', d)})",
        ]

    def _double(self) -> list[Callable[[int], str]]:
        w, pick = self.write, self.chosen.choice
        return [
            lambda d: f"{w('double', d)} {pick('+-*/')} {w(pick(['double', 'number']), d)}",
            lambda d: f"{w('number', d)} / {w('number', d)}",
            lambda d: f"cast({w('number', d)} as double)",
            lambda d: f"abs({w('double', d)})",
            lambda d: f"- {w('double', d)}",
        ]

    def _truth(self) -> list[Callable[[int], str]]:
        w, pick = self.write, self.chosen.choice
        compare = ["=", "<", "<=", ">", ">=", "<>", "!=", "<=>", "=="]

        def compared(d: int) -> str:
            sort = pick([*_SORTS])
            return f"{w(sort, d)} {pick(compare)} {w(sort, d)}"

        def listed(d: int) -> str:
            sort = pick(["number", "text", "date"])
            return f"{w(sort, d)} {pick(['', 'not '])}in ({', '.join(pick(_LITERALS[sort]) for _ in range(3))})"

        return [
            *[compared] * 3,
            listed,
            lambda d: f"{w('truth', d)} {pick(['and', 'or', 'AND'])} {w('truth', d)}",
            lambda d: f"not {w('truth', d)}",
            lambda d: f"{w(pick([*_SORTS]), d)} is {pick(['', 'not '])}null",
            lambda d: f"{w('number', d)} {pick(['', 'not '])}between {w('number', d)} and {w('number', d)}",
            lambda d: f"{pick(['startswith', 'endswith', 'contains'])}({w('text', d)}, {pick(_LITERALS['text'])})",
        ]

    def _text(self) -> list[Callable[[int], str]]:
        w, pick = self.write, self.chosen.choice
        return [
            lambda d: f"{w('text', d)} || {w('text', d)}",
            lambda d: f"concat({w('text', d)}, {w('text', d)}, {w('text', d)})",
            lambda d: f"{pick(['trim', 'ltrim', 'rtrim', 'upper', 'lower'])}({w('text', d)})",
            lambda d: f"left({w('text', d)}, {pick([0, 1, 2, 50])})",
            lambda d: f"{pick(['substring', 'substr'])}({w('text', d)}, {pick([1, 2, 3, 9])}, {pick([0, 1, 2, 50])})",
            lambda d: f"cast({w(pick(['number', 'truth']), d)} as string)",
        ]

    def _date(self) -> list[Callable[[int], str]]:
        w, pick = self.write, self.chosen.choice
        return [lambda d: f"{pick(['to_date', 'date'])}({w('moment', d)})", lambda d: f"cast({w('moment', d)} as date)"]

    def _moment(self) -> list[Callable[[int], str]]:
        w, pick = self.write, self.chosen.choice
        units = "year", "quarter", "MONTH", "day", "hour", "minute", "second"
        return [lambda d: f"date_trunc('{pick(units)}', {w('moment', d)})"]


def find_differences(
    spark: SparkSession, rows: pa.Table, texts: Sequence[str]
) -> tuple[int, list[tuple[str, object, object]]]:
    """Return how many of some expressions Arrow evaluates, and those whose values or types are not Spark's."""
    trees = {text: tree for text in dict.fromkeys(texts) if (tree := _translate(text)) is not None}
    values = {text: _evaluate(tree, rows) for text, tree in trees.items()}
    frame = spark.createDataFrame(rows).coalesce(1).select("row", F.struct(*TYPES).alias("a")).cache()
    try:
        return len(trees), _compare(frame, {text: found for text, found in values.items() if found[0]})
    finally:
        frame.unpersist()


def _translate(text: str) -> Expression | None:
    try:
        return translate_expression(text, COLUMNS)
    except ExpressionError:
        return None


def _evaluate(tree: Expression, rows: pa.Table) -> tuple[list[int], pa.ChunkedArray]:
    """Return the rows in which Arrow has a value, and the values there."""

    def evaluate(some: pa.Table) -> pa.ChunkedArray:
        projection = arrow_expressions.Projection({"it": tree}, None)
        return arrow_expressions.project_rows(projection, some).column("it")

    try:
        return [*range(rows.num_rows)], evaluate(rows)
    except EvaluationError:
        found: dict[int, pa.ChunkedArray] = {}
        for row in range(rows.num_rows):
            try:
                found[row] = evaluate(rows.slice(row, 1))
            except EvaluationError:
                continue
        return [*found], pa.chunked_array([chunk for it in found.values() for chunk in it.chunks], tree.kind)


def _compare(
    frame: DataFrame, values: dict[str, tuple[list[int], pa.ChunkedArray]]
) -> list[tuple[str, object, object]]:
    """Return the expressions whose values are not Spark's, with both; all are evaluated in one job, if none fails."""
    if not values:
        return []
    texts = [*values]
    try:
        chosen = (f"row in ({', '.join(map(str, values[text][0]))})" for text in texts)
        columns = [
            F.expr(f"case when {rows} then {text} end").alias(f"c{n}")
            for n, (rows, text) in enumerate(zip(chosen, texts, strict=True))
        ]
        found = frame.sortWithinPartitions("row").select("row", *columns).toArrow()
    except Exception as error:  # noqa: BLE001 - whatever fails is found by halves
        if len(texts) == 1:
            if isinstance(error, AnalysisException):  # also ParseException: Spark refuses the contract
                return []
            return [(texts[0], values[texts[0]][1].to_pylist(), f"{error}"[:300])]
        half = len(texts) // 2
        first, second = ({text: values[text] for text in some} for some in (texts[:half], texts[half:]))
        return [*_compare(frame, first), *_compare(frame, second)]
    different = []
    for n, text in enumerate(texts):
        rows, own = values[text]
        spark = found.column(f"c{n}").take(pa.array(rows, pa.int64()))
        one, other = _describe(own), _describe(spark)
        if one != other:
            different.append((text, one, other))
    return different


def _describe(values: pa.ChunkedArray) -> tuple[str, list[object]]:
    """Return the type and the values; doubles by their bits, since NaN is not itself and -0.0 is 0.0."""
    return str(values.type), [it.hex() if isinstance(it, float) else it for it in values.to_pylist()]
