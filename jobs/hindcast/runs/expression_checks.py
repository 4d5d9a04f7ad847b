"""Spark's errors about a view's expressions, with the line of the contract that they come from.

The room `contract` refuses what can be checked without Spark. The types of expressions, and whether they fail on a
record, are known only here: once a view's inputs exist, and when its rows are computed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import get_args

from pyspark.errors import AnalysisException
from pyspark.logger import PySparkLogger
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    CalendarIntervalType,
    CharType,
    DataType,
    DateType,
    DayTimeIntervalType,
    NullType,
    NumericType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VarcharType,
    YearMonthIntervalType,
)

from hindcast.bitemporal import derivation
from hindcast.contract import Contract, Shape, View, list_shapes, locate_complaint, valid_time
from hindcast.contract.expressions import WRITE_OUT_FIX
from hindcast.contract.shapes import PERIODS, FieldPath
from hindcast.contract.valid_time import TimeField
from hindcast.contract.view_checks import Complaint
from hindcast.runs import date_literals
from hindcast.runs.expression_errors import (
    UnfitExpressionError,
    explain_expression_errors,
    parse_message,
    resolve_aggregates,
    resolve_expressions,
)

for _name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
    PySparkLogger.getLogger(_name).addFilter(lambda _: False)  # the errors raised here replace its stack traces


def refuse_unfit_expressions(
    spark: SparkSession, contract: Contract, name: str, inputs: Mapping[str, StructType]
) -> None:
    """Raise UnfitExpressionError for the first expression of a view that Spark cannot analyse, or whose type is wrong.

    `inputs`: the columns of each input's flat rows. A condition must be a boolean, and what a join looks
    up must have the types of the key in which it is looked up.
    """
    view, known = contract.views[name], list_shapes(contract)
    rows = _empty_rows(spark, view, inputs, known)
    plain, aggregates = resolve_expressions(view, known), resolve_aggregates(view, known)
    calls = {place: F.call_function(function, F.expr(argument)) for place, (function, argument) in aggregates.items()}
    types = _analyse_columns({place: F.expr(text) for place, text in plain.items()}, rows.select)
    _refuse_unfit_types(types | _analyse_columns(calls, rows.agg))
    _refuse_hidden_inputs(view, known, rows)
    for place, text in plain.items():
        _refuse_date_literal(spark, place, text, rows.select)
    for place, (function, argument) in aggregates.items():
        _refuse_date_literal(spark, place, argument, rows.agg, partial(F.call_function, function))
    if not isinstance(types.get(("where",), BooleanType()), BooleanType):
        found = f"{plain['where',]} is {types['where',].simpleString()}, not a condition"
        raise UnfitExpressionError(("where",), found, "write a comparison")
    _refuse_unlike_keys(
        view, inputs, known, {place: (plain[place], types[place]) for place in plain if place[0] == "join"}
    )


def refuse_unfit_contract(spark: SparkSession, folder: Path, contract: Contract) -> None:
    """Raise ContractError for the first expression of a contract that Spark refuses; no table has to exist."""
    rows: dict[str, DataFrame] = {}
    known = list_shapes(contract)
    for name in (*contract.topics, *contract.inputs):
        columns = [f"`{column}` {kind}" for column, kind in known[name].columns.items()]
        periods = [f"`{column}` timestamp" for column in PERIODS[known[name].kind]]
        lineage = ["_partition int", "_offset long"] if known[name].kind == "events" else []
        rows[name] = spark.createDataFrame([], ", ".join([*columns, *periods, *lineage]))
        if name in contract.topics:
            refuse_unfit_times(spark, folder, contract, name)
    for name in contract.ordered_views:
        with explain_expression_errors(folder, contract, name):
            refuse_unfit_expressions(spark, contract, name, {i: rows[i].schema for i in contract.views[name].inputs})
            rows[name] = derivation.derive_view(contract, name, rows)


def refuse_unfit_times(spark: SparkSession, folder: Path, contract: Contract, name: str) -> None:
    """Raise ContractError if Spark cannot analyse a topic's `valid_time` or `arrival`, or if it is not a timestamp."""
    for field in get_args(valid_time.TimeField):
        _refuse_unfit_time(spark, folder, contract, name, field)


def _refuse_unfit_time(spark: SparkSession, folder: Path, contract: Contract, name: str, field: TimeField) -> None:
    topic = contract.topics[name]
    if (text := valid_time.resolve_time(topic, field)) is None:
        return
    fields = ", ".join(f"`{column}`: {kind}" for column, kind in valid_time.list_usable_columns(topic).items())
    rows, place = spark.createDataFrame([], f"`{valid_time.RECORD}` struct<{fields}>"), (field,)
    try:
        kind = _analyse_columns({place: F.expr(text)}, rows.select)[place]
        _refuse_date_literal(spark, place, text, rows.select)
    except UnfitExpressionError as unfit:
        plain, fix = (
            text.replace(f"`{valid_time.RECORD}`.", "").replace(f"{valid_time.RECORD}.", "")
            for text in unfit.complaint[1:]
        )
        complaint = Complaint(place, f"{field}: {plain}", fix)
    else:
        if isinstance(kind, TimestampType):
            return
        written = getattr(topic, field), kind.simpleString()
        complaint = Complaint(place, f"{' is '.join(written)}, not a timestamp", valid_time.suggest_fix(*written))
    raise locate_complaint(folder, contract.pipeline, complaint._replace(location=("topics", name, *place)))


def _refuse_date_literal(
    spark: SparkSession,
    place: FieldPath,
    text: str,
    over: Callable[[Column], DataFrame],
    call: Callable[[Column], Column] = lambda column: column,
) -> None:
    """Raise UnfitExpressionError for an expression with a text like 'today' that Spark casts to a changing date."""
    if (wrong := date_literals.find_date_literal(spark, text, over, call)) is not None:
        raise UnfitExpressionError(
            place, f"{text}: {wrong} is cast to a date, which is another one every day", WRITE_OUT_FIX
        )


def _refuse_unfit_types(types: Mapping[FieldPath, DataType]) -> None:
    """Raise UnfitExpressionError for a column whose values a table cannot store, or Spark cannot compare.

    Spark takes some for equal where they differ; a run publishes what differs from the current rows.
    """
    for place, kind in types.items():
        if place[0] not in _COLUMNS:
            continue
        if (part := _find_unstorable(kind)) is not None:
            found = f"it is {kind.simpleString()}, and no table can store {part.simpleString()}"
            fix = "cast it to a string; or write a number, such as timestampdiff(SECOND, start, end)"
            if not isinstance(part, _NOT_STORED):
                fix = "cast it to the type that is meant, for example cast(array() AS array<string>)"
            raise UnfitExpressionError(place, found, fix)
        if (part := _find_incomparable(kind)) is not None:
            found = f"it is {kind.simpleString()}, and values of {part.simpleString()} cannot be distinguished"
            fix = "write a string without COLLATE, map_entries(...) of a map, to_json(...) of a variant"
            raise UnfitExpressionError(place, found, fix)


_COLUMNS = ("select", "key", "group_by", "aggregate")


_COMPARED = (
    *(NumericType, BooleanType, BinaryType, DateType, TimestampType, TimestampNTZType, NullType),
    *(CharType, VarcharType),
)


_NOT_STORED = (DayTimeIntervalType, YearMonthIntervalType, CalendarIntervalType)


def _find_unstorable(kind: DataType) -> DataType | None:
    """Return the first part of a type that Delta has no column for: intervals, arrays of nulls, structs of nulls."""
    parts = _list_parts(kind)
    if parts and all(isinstance(part, NullType) for part in parts):
        return kind
    found = (_find_unstorable(part) for part in parts)
    return next((part for part in found if part is not None), kind if isinstance(kind, _NOT_STORED) else None)


def _find_incomparable(kind: DataType) -> DataType | None:
    """Return the first part of a type whose values are not equal exactly where they are the same."""
    if isinstance(kind, ArrayType | StructType):
        found = (_find_incomparable(part) for part in _list_parts(kind))
        return next((part for part in found if part is not None), None)
    plain = kind.isUTF8BinaryCollation() if isinstance(kind, StringType) else isinstance(kind, _COMPARED)
    return None if plain else kind


def _list_parts(kind: DataType) -> list[DataType]:
    """Return the types of a struct's fields, or that of an array's elements; nothing for other types."""
    if isinstance(kind, StructType):
        return [field.dataType for field in kind.fields]
    return [kind.elementType] if isinstance(kind, ArrayType) else []


def _refuse_hidden_inputs(view: View, known: Mapping[str, Shape], rows: DataFrame) -> None:
    """Raise UnfitExpressionError for an expression where Spark reads the name of an input and `resolve` reads none.

    That would be the whole input, with its sensitive columns: `to_json(all)` of an input `all`. So each expression is
    also analysed with inputs under names that no expression can have.
    """
    hidden = {name: f"_hidden_{number}" for number, name in enumerate(view.inputs)}
    seen = rows.toDF(*(hidden[name] for name in rows.columns))
    plain, aggregates = resolve_expressions(view, known, hidden), resolve_aggregates(view, known, hidden)
    calls = {place: F.call_function(function, F.expr(argument)) for place, (function, argument) in aggregates.items()}
    try:
        _analyse_columns({place: F.expr(text) for place, text in plain.items()}, seen.select)
        _analyse_columns(calls, seen.agg)
    except UnfitExpressionError as unfit:
        found = "Spark reads a word of SQL as the name of an input, which is not a value"
        raise UnfitExpressionError(unfit.complaint.location, found, "name the columns that are meant") from None


def _empty_rows(
    spark: SparkSession, view: View, inputs: Mapping[str, StructType], known: Mapping[str, Shape]
) -> DataFrame:
    """Return an empty DataFrame with a struct column per input, on which to analyse a view's expressions."""
    structs = {name: StructType([inputs[name][column] for column in known[name].columns]) for name in view.inputs}
    return spark.createDataFrame([], StructType([StructField(name, it) for name, it in structs.items()]))


def _analyse_columns(columns: Mapping[FieldPath, Column], over: Callable[..., DataFrame]) -> dict[FieldPath, DataType]:
    """Return the types of columns, analysed together; raise UnfitExpressionError for the first that Spark refuses."""
    if not columns:
        return {}
    numbered = [column.alias(f"_{n}") for n, column in enumerate(columns.values())]
    try:
        return dict(zip(columns, (field.dataType for field in over(*numbered).schema.fields), strict=True))
    except AnalysisException:
        for place, column in columns.items():
            try:
                over(column.alias("_")).schema  # noqa: B018  # reading the property analyses the column
            except AnalysisException as error:
                what, fix = parse_message(error)
                raise UnfitExpressionError(
                    place, what, fix or "write an expression that Spark SQL accepts there"
                ) from None
        raise


def _refuse_unlike_keys(
    view: View,
    inputs: Mapping[str, StructType],
    known: Mapping[str, Shape],
    looked_up: Mapping[FieldPath, tuple[str, DataType]],
) -> None:
    """Raise UnfitExpressionError if the keys of a join have different types."""
    if view.join is None or view.second_input is None:
        return
    keys = [(column, inputs[view.second_input][column].dataType) for column in known[view.second_input].key]
    own = [
        (("join",), (f"{view.first_input}.{c}", inputs[view.first_input][c].dataType))
        for c in known[view.first_input].key
    ]
    for (place, (text, got)), (column, kind) in zip(looked_up.items() or own, keys, strict=True):
        if got.simpleString() != kind.simpleString():
            found = f"{text} is {got.simpleString()}, {view.second_input}.{column} is {kind.simpleString()}"
            fix = f"write on: cast({text} AS {kind.simpleString()})" if place != ("join",) else "re-key one of the two"
            raise UnfitExpressionError(place, found, fix)
