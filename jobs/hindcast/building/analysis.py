"""What Spark says of a view's expressions, told with the line of the contract that it comes from.

`contracts` refuses what can be known without Spark; the types of expressions, and what a record does to them, are known
here: when a view's inputs are there, and when its rows are computed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # it has no types
from pyspark.errors import AnalysisException, PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
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

from hindcast.building import todays
from hindcast.contracts import Contract, Shape, View, complain, shapes, valid_time
from hindcast.contracts.expressions import WRITTEN_OUT, aggregate, resolve
from hindcast.contracts.sensitive import NOT_TOLD, discreet
from hindcast.contracts.shapes import PERIODS, Place, expressions, scope
from hindcast.contracts.views import Complaint
from hindcast.corrected import derive
from hindcast.errors import ContractError

for _name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
    PySparkLogger.getLogger(_name).addFilter(lambda _: False)  # what it says, with a stack of the JVM's, is told here


class UnfitError(ValueError):
    """An expression that cannot be what its place in the contract wants."""

    def __init__(self, place: Place, found: str, mend: str) -> None:
        self.complaint = Complaint(place, found, mend)
        super().__init__(found)


def check(spark: SparkSession, contract: Contract, name: str, inputs: Mapping[str, DataFrame]) -> None:
    """Raises UnfitError for the first expression of a view that Spark cannot analyse, or whose type does not fit.

    `inputs`: the flat rows of each input by name; nothing is read. A condition must be a boolean, what a join looks up
    of the types of the key that it is looked up in.
    """
    it, known = contract.views[name], shapes(contract)
    rows = _empty(spark, it, inputs, known)
    plain, aggregates = _expressions(it, known), _aggregates(it, known)
    calls = {place: F.call_function(function, F.expr(argument)) for place, (function, argument) in aggregates.items()}
    types = _analysed({place: F.expr(text) for place, text in plain.items()}, rows.select)
    _refuse_incomparable(types | _analysed(calls, rows.agg))
    _refuse_unseen(it, known, rows)
    for place, text in plain.items():
        _refuse_todays(spark, place, text, rows.select)
    for place, (function, argument) in aggregates.items():
        _refuse_todays(spark, place, argument, rows.agg, partial(F.call_function, function))
    if not isinstance(types.get(("where",), BooleanType()), BooleanType):
        found = f"{plain['where',]} is {types['where',].simpleString()}, not a condition"
        raise UnfitError(("where",), found, "write a comparison")
    _check_keys(it, inputs, known, {place: (plain[place], types[place]) for place in plain if place[0] == "join"})


def check_contract(spark: SparkSession, folder: Path, contract: Contract) -> None:
    """Raise ContractError for the first expression of a contract that Spark refuses; no table has to be there."""
    rows: dict[str, DataFrame] = {}
    known = shapes(contract)
    for name in (*contract.topics, *contract.inputs):
        columns = [f"`{column}` {kind}" for column, kind in known[name].columns.items()]
        periods = [f"`{column}` timestamp" for column in PERIODS[known[name].kind]]
        lineage = ["_partition int", "_offset long"] if known[name].kind == "events" else []
        rows[name] = spark.createDataFrame([], ", ".join([*columns, *periods, *lineage]))
        if name in contract.topics:
            check_valid_time(spark, folder, contract, name)
    for name in contract.ordered:
        with told(folder, contract, name):
            check(spark, contract, name, rows)
            rows[name] = derive.view(contract, name, rows)


def check_valid_time(spark: SparkSession, folder: Path, contract: Contract, name: str) -> None:
    """Raises ContractError for a topic's `valid_time` that Spark cannot analyse, or that is not a timestamp."""
    topic = contract.topics[name]
    if (text := valid_time.resolved(topic)) is None:
        return
    fields = ", ".join(f"`{column}`: {kind}" for column, kind in valid_time.columns(topic).items())
    rows, place = spark.createDataFrame([], f"`{valid_time.RECORD}` struct<{fields}>"), ("valid_time",)
    try:
        kind = _analysed({place: F.expr(text)}, rows.select)[place]
        _refuse_todays(spark, place, text, rows.select)
    except UnfitError as unfit:
        plain, mend = (
            text.replace(f"`{valid_time.RECORD}`.", "").replace(f"{valid_time.RECORD}.", "")
            for text in unfit.complaint[1:]
        )
        found = Complaint(place, f"valid_time: {plain}", mend)
    else:
        if isinstance(kind, TimestampType):
            return
        given = topic.valid_time or "", kind.simpleString()
        found = Complaint(place, f"{' is '.join(given)}, not a timestamp", valid_time.mend(*given))
    raise complain(folder, contract.pipeline, found._replace(location=("topics", name, *place)))


def _refuse_todays(
    spark: SparkSession,
    place: Place,
    text: str,
    over: Callable[[Column], DataFrame],
    call: Callable[[Column], Column] = lambda column: column,
) -> None:
    """Raise UnfitError for an expression with a text that Spark takes for a day, and for another one tomorrow."""
    if (wrong := todays.text_of_today(spark, text, over, call)) is not None:
        raise UnfitError(place, f"{text}: {wrong} is cast to a date, and is another one every day", WRITTEN_OUT)


@contextmanager
def told(folder: Path, contract: Contract, name: str) -> Iterator[None]:
    """What is unfit, and a failure on a record that Spark lays to an expression, as ContractErrors at their lines."""
    try:
        yield
    except UnfitError as unfit:
        raise _refusal(folder, contract, name, unfit.complaint) from None
    except (PySparkException, Py4JJavaError) as error:
        if found := _failed(contract, name, error):
            told = _refusal(folder, contract, name, found)
            raise told from (None if NOT_TOLD in str(told) else error)
        raise


def _refusal(folder: Path, contract: Contract, name: str, complaint: Complaint) -> ContractError:
    place = ("views", name, *complaint.location)
    return complain(folder, contract.pipeline, complaint._replace(location=place))


def _refuse_incomparable(types: Mapping[Place, DataType]) -> None:
    """Raise UnfitError for a column of a view whose values Spark cannot compare, or takes for equal where they differ.

    What a run changes is what differs from what is believed.
    """
    for place, kind in types.items():
        if place[0] in _COLUMNS and (part := _find_incomparable(kind)) is not None:
            found = f"it is {kind.simpleString()}, and values of {part.simpleString()} cannot be told from each other"
            mend = "write a string without COLLATE, map_entries(...) of a map, to_json(...) of a variant"
            raise UnfitError(place, found, mend)


_COLUMNS = ("select", "key", "group_by", "aggregate")
_COMPARED = (
    *(NumericType, BooleanType, BinaryType, DateType, TimestampType, TimestampNTZType, NullType),
    *(CharType, VarcharType, DayTimeIntervalType, YearMonthIntervalType),
)


def _find_incomparable(kind: DataType) -> DataType | None:
    """Return the first part of a type whose values are not equal exactly where they are the same."""
    if isinstance(kind, StructType):
        return next((found for it in kind.fields if (found := _find_incomparable(it.dataType)) is not None), None)
    if isinstance(kind, ArrayType):
        return _find_incomparable(kind.elementType)
    plain = kind.isUTF8BinaryCollation() if isinstance(kind, StringType) else isinstance(kind, _COMPARED)
    return None if plain else kind


def _refuse_unseen(it: View, known: Mapping[str, Shape], rows: DataFrame) -> None:
    """Raise UnfitError for an expression in which Spark reads the name of an input where `resolve` has read none.

    That would be the whole input, with what is sensitive: `to_json(all)` of an input `all`. So Spark has to understand
    each expression as well where the inputs have names that no expression can have.
    """
    hidden = {name: f"_hidden_{number}" for number, name in enumerate(it.inputs)}
    seen = rows.toDF(*(hidden[name] for name in rows.columns))
    plain, aggregates = _expressions(it, known, hidden), _aggregates(it, known, hidden)
    calls = {place: F.call_function(function, F.expr(argument)) for place, (function, argument) in aggregates.items()}
    try:
        _analysed({place: F.expr(text) for place, text in plain.items()}, seen.select)
        _analysed(calls, seen.agg)
    except UnfitError as unfit:
        found = "a word of SQL is read as the name of an input, which is no value"
        raise UnfitError(unfit.complaint.location, found, "name the columns that are meant") from None


def _expressions(it: View, known: Mapping[str, Shape], places: Mapping[str, str] | None = None) -> dict[Place, str]:
    """The view's expressions over one row, resolved, by their places in the contract."""
    return {place: resolve(text, names, places) for place, (text, names) in expressions(it, known).items()}


def _aggregates(
    it: View, known: Mapping[str, Shape], places: Mapping[str, str] | None = None
) -> dict[Place, tuple[str, str]]:
    """The view's aggregates: function and resolved argument."""
    texts, names = it.aggregate or {}, scope(it, known)
    found = {("aggregate", column): aggregate(text, names, places) for column, text in texts.items()}
    return {place: ("count" if f == "count_distinct" else f, argument) for place, (f, argument) in found.items()}


def _empty(spark: SparkSession, it: View, inputs: Mapping[str, DataFrame], known: Mapping[str, Shape]) -> DataFrame:
    """No rows, with a struct per input: what the view's expressions are said over."""
    structs = []
    for name in it.inputs:
        schema = inputs[name].schema
        structs.append(StructField(name, StructType([schema[column] for column in known[name].columns])))
    return spark.createDataFrame([], StructType(structs))


def _analysed(columns: Mapping[Place, Column], over: Callable[..., DataFrame]) -> dict[Place, DataType]:
    """The type of each column, all in one go; if Spark refuses, the first that it refuses alone is unfit."""
    if not columns:
        return {}
    numbered = [column.alias(f"_{n}") for n, column in enumerate(columns.values())]
    try:
        return dict(zip(columns, (field.dataType for field in over(*numbered).schema.fields), strict=True))
    except AnalysisException:
        for place, column in columns.items():
            try:
                over(column.alias("_")).schema  # noqa: B018  # it is asking that analyses
            except AnalysisException as error:
                what, mend = _said(error)
                raise UnfitError(place, what, mend or "write what Spark SQL takes there") from None
        raise


def _check_keys(
    it: View,
    inputs: Mapping[str, DataFrame],
    known: Mapping[str, Shape],
    looked_up: Mapping[Place, tuple[str, DataType]],
) -> None:
    """Keys that are joined must be of one type."""
    if it.join is None or it.second is None:
        return
    wanted = [(column, inputs[it.second].schema[column].dataType) for column in known[it.second].key]
    own = [(("join",), (f"{it.first}.{c}", inputs[it.first].schema[c].dataType)) for c in known[it.first].key]
    for (place, (text, got)), (column, kind) in zip(looked_up.items() or own, wanted, strict=True):
        if got.simpleString() != kind.simpleString():
            found = f"{text} is {got.simpleString()}, {it.second}.{column} is {kind.simpleString()}"
            mend = f"write on: cast({text} AS {kind.simpleString()})" if place != ("join",) else "re-key one of the two"
            raise UnfitError(place, found, mend)


def _failed(contract: Contract, name: str, error: Exception) -> Complaint | None:
    """The expression that Spark names in a failure at run time, if it is one of the view's."""
    it, known = contract.views[name], shapes(contract)
    aggregates = _aggregates(it, known)
    found = re.search(r"== SQL \(line \d+, position \d+\) ==\n(.*?)\n *\^", str(error), re.DOTALL)
    if not found:
        # Only what adds up overflows without Spark saying where.
        adding = {place: argument for place, (function, argument) in aggregates.items() if function in ("sum", "avg")}
        if not adding or "OVERFLOW" not in str(error):
            return None
        place, argument = (
            next(iter(adding.items())) if len(adding) == 1 else (("aggregate",), ", ".join(adding.values()))
        )
        said = discreet(contract, name, _said(error)[0])
        told = f"{contract.pipeline}.{name}: what is added up of {argument} exceeds its type: {said}"
        return Complaint(place, told, "cast what is added up to a wider type, for example decimal(38,2)")
    texts = _expressions(it, known) | {place: argument for place, (_, argument) in aggregates.items()}
    there = found[1].strip(". \n").replace("value.", f"{it.first}.")
    for place, text in texts.items():
        if there in text:
            what, mend = _said(error)
            what = discreet(contract, name, what)
            told = f"{contract.pipeline}.{name} has a record on which {text} fails: {what}"
            return Complaint(place, told, mend or "let the expression give null for such records")
    return None


def _said(error: Exception) -> tuple[str, str]:
    """What an error of Spark says first, and what it says besides, without its class, codes and settings."""
    text = re.split(r"\s*SQLSTATE: |\n== SQL|\n\tat ", str(error), maxsplit=1)[0]
    text = text.rpartition("Exception: ")[2] if "Exception: " in text else text
    plain = re.sub(r"^\[[A-Z0-9_.]+\] ", "", text.strip())
    first, *others = re.split(r"(?<=\.)\s+(?=[A-Z])", plain)
    return first.rstrip("."), " ".join(other for other in others if "spark.sql." not in other).rstrip(".")
