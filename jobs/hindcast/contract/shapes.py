"""The shape of every table of a contract: its kind, key and columns. Pure, without Spark."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from hindcast.contract.expressions import Scope, find_plain_type, parse_aggregate, resolve
from hindcast.contract.model import Contract
from hindcast.contract.topic import Input, Topic
from hindcast.contract.view import View

ShapeKind = Literal["events", "versions", "windows", "pairs"]
PERIODS: dict[str, tuple[str, ...]] = {
    "versions": ("validFrom", "validTo"),
    "events": ("timestamp",),
    "windows": ("windowStart", "windowEnd"),
    "pairs": ("timestamp",),
}
"""The columns of each kind that hold the time at which a row is true."""

FieldPath = tuple[str | int, ...]
"""The path of a field in a contract: names, and places in lists."""

Columns = Mapping[str, str | None]
"""Column names with their types, None where only Spark knows them."""


@dataclass(frozen=True)
class Shape:
    """The kind of a table's rows (versions of keys, events, windows of events, pairs of events) and its columns."""

    kind: ShapeKind
    key: Columns
    value: Columns

    @property
    def columns(self) -> dict[str, str | None]:
        """The columns of key and value."""
        return {**self.key, **self.value}


def list_shapes(contract: Contract) -> dict[str, Shape]:
    """Return the shape of every topic, input and view of a checked contract, each after what it is derived from."""
    known = list_source_shapes(contract)
    for name in contract.ordered_views:
        known[name] = view_shape(contract.views[name], known)
    return known


def list_source_shapes(contract: Contract) -> dict[str, Shape]:
    """Return the shapes of the topics and of the tables of other pipelines."""
    known = {name: topic_shape(topic) for name, topic in contract.topics.items()}
    return known | {name: topic_shape(table) for name, table in contract.inputs.items()}


def identity_columns(kind: str, key: Iterable[str]) -> tuple[str, ...]:
    """Return the columns that identify a current row of a table."""
    match kind:
        case "versions":
            return (*key, "validFrom")
        case "windows":
            return (*key, "windowStart", "windowEnd")
        case "pairs":
            return ("_partition", "_offset", "_rightPartition", "_rightOffset")
        case _:
            return ("_partition", "_offset")


def topic_shape(topic: Topic | Input) -> Shape:
    """Return the shape of a topic or an input: versions if it is read as a table, else events."""
    return Shape("versions" if topic.read == "table" else "events", topic.key, topic.value)


def view_shape(view: View, known: Mapping[str, Shape]) -> Shape:
    """Return the shape of a view, given the shapes of its inputs."""
    types = list_column_types(view, known)
    first = known[view.first_input]
    if view.aggregate is not None:
        grouped = resolve_all(view.group_by, view, known)
        key = {n: find_plain_type(text, types) for n, text in grouped.items()} if view.group_by else first.key
        kind: ShapeKind = "windows" if view.window else "versions"
        return Shape(kind, key, dict.fromkeys(view.aggregate))
    key = {n: find_plain_type(text, types) for n, text in resolve_all(view.key, view, known).items()} or first.key
    value = {n: find_plain_type(text, types) for n, text in selected_columns(view, known).items()}
    return Shape("pairs" if view.join and view.join.stream else first.kind, key, value)


def list_column_types(view: View, known: Mapping[str, Shape]) -> dict[str, str | None]:
    """Return the types of the columns that a view's expressions can use: `input.column` -> type, None if not known."""
    return {f"{i}.{column}": kind for i in view.inputs for column, kind in known[i].columns.items()}


def selected_columns(view: View, known: Mapping[str, Shape]) -> dict[str, str]:
    """Return a view's columns beside its key as resolved expressions; its inputs' values if it selects none."""
    key = view.key or known[view.first_input].key
    if view.select is not None:
        return {n: text for n, text in resolve_all(view.select, view, known).items() if n not in key}
    old = (
        {}
        if view.key is None
        else {n: f"{view.first_input}.{n}" for n in known[view.first_input].key if n not in view.key}
    )
    every = {column: f"{name}.{column}" for name in view.inputs for column in known[name].value if column not in key}
    return {**old, **every}


def column_expressions(view: View, known: Mapping[str, Shape]) -> dict[str, str]:
    """Return every column of a view as an expression over `input.column`, an aggregate as its argument."""
    key = {column: f"{view.first_input}.{column}" for column in known[view.first_input].key}
    if view.aggregate is not None:
        names = view_scope(view, known)
        groups = resolve_all(view.group_by, view, known) or key
        return groups | {column: parse_aggregate(text, names)[1] for column, text in view.aggregate.items()}
    return (resolve_all(view.key, view, known) or key) | selected_columns(view, known)


def second_key_columns(view: View, known: Mapping[str, Shape]) -> dict[str, str]:
    """Return, as `input.column`, the columns in which a row that only the second input has gives the view its key.

    Only an outer join without `key` has such rows. They have no place in `column_expressions`.
    """
    if view.join is None or view.join.how != "outer" or view.key is not None:
        return {}
    first, second = view.first_input, view.second_input or ""
    return {own: f"{second}.{other}" for own, other in zip(known[first].key, known[second].key, strict=True)}


def resolve_all(texts: Mapping[str, str] | None, view: View, known: Mapping[str, Shape]) -> dict[str, str]:
    """Return expressions over a view's inputs with every column as `input.column`."""
    names = view_scope(view, known)
    return {name: resolve(text, names) for name, text in (texts or {}).items()}


def row_expressions(view: View, known: Mapping[str, Shape]) -> dict[FieldPath, tuple[str, Scope]]:
    """Return the view's expressions over one row, as written, by their fields, with the names that each can use."""
    names = view_scope(view, known)
    first = {view.first_input: names[view.first_input]}
    found: dict[FieldPath, tuple[str, Scope]] = {}
    if view.join:
        is_single = isinstance(view.join.on, str)
        found |= {("join", "on", *(() if is_single else (n,))): (text, first) for n, text in enumerate(view.join.keys)}
    if view.where is not None:
        found["where",] = (view.where, names)
    for field in ("select", "key", "group_by"):
        found |= {(field, column): (text, names) for column, text in (getattr(view, field) or {}).items()}
    return found


def view_scope(view: View, known: Mapping[str, Shape]) -> dict[str, list[str]]:
    """Return the names that a view's expressions can use: input -> columns."""
    return {name: list(known[name].columns) for name in view.inputs}


PLACE_COLUMNS = ("_partition", "_offset")
"""The columns with the place of a record, or of a row of events, in its topic."""

_SOURCE = ("_sourcePartition", "_sourceOffset")
SOURCE_PLACES = {"events": (_SOURCE,), "pairs": (_SOURCE, ("_rightPartition", "_rightOffset"))}
"""The columns with the places of the events that an emitted record describes, by the kind of the view."""
