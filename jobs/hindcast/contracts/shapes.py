"""The form of every table that a contract makes: its kind, its key, its columns. Pure, without Spark."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from hindcast.contracts.expressions import Scope, aggregate, plain_type, resolve
from hindcast.contracts.model import Contract
from hindcast.contracts.topic import Input, Topic
from hindcast.contracts.view import View

Kind = Literal["events", "versions", "windows", "pairs"]
PERIODS: dict[str, tuple[str, ...]] = {
    "versions": ("validFrom", "validTo"),
    "events": ("timestamp",),
    "windows": ("windowStart", "windowEnd"),
    "pairs": ("timestamp",),
}
"""The columns of each kind that say when a row is true."""

Place = tuple[Any, ...]
"""The path of a field in a view."""

Columns = Mapping[str, str | None]
"""Column names with their types, None where only Spark can tell."""


@dataclass(frozen=True)
class Shape:
    """What a table holds: versions of keys, events, windows of them, or pairs of two streams' events."""

    kind: Kind
    key: Columns
    value: Columns

    @property
    def columns(self) -> dict[str, str | None]:
        """Key and value together."""
        return {**self.key, **self.value}


def shapes(contract: Contract) -> dict[str, Shape]:
    """The shape of every topic and view of a checked contract, inputs before what is made of them."""
    known = given(contract)
    for name in contract.ordered:
        known[name] = view_shape(contract.views[name], known)
    return known


def given(contract: Contract) -> dict[str, Shape]:
    """The shapes of what views are made of: the topics, and the tables of other pipelines."""
    known = {name: topic_shape(topic) for name, topic in contract.topics.items()}
    return known | {name: topic_shape(it) for name, it in contract.inputs.items()}


def identity(kind: str, key: Iterable[str]) -> tuple[str, ...]:
    """The columns that no two believed rows of a table share."""
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
    """The table of a topic, or an input: versions if it is read as a table, else events."""
    return Shape("versions" if topic.read == "table" else "events", topic.key, topic.value)


def view_shape(view: View, known: Mapping[str, Shape]) -> Shape:
    """A view's table, given the shapes of its inputs."""
    types = {f"{i}.{column}": kind for i in view.inputs for column, kind in known[i].columns.items()}
    first = known[view.first]
    if view.aggregate is not None:
        grouped = resolved(view.group_by, view, known)
        key = {n: plain_type(text, types) for n, text in grouped.items()} if view.group_by else first.key
        kind: Kind = "windows" if view.window else "versions"
        return Shape(kind, key, dict.fromkeys(view.aggregate))
    kept = {n: plain_type(text, types) for n, text in resolved(view.key, view, known).items()} or first.key
    chosen = {n: plain_type(text, types) for n, text in selected(view, known).items()}
    return Shape("pairs" if view.join and view.join.stream else first.kind, kept, chosen)


def selected(view: View, known: Mapping[str, Shape]) -> dict[str, str]:
    """A view's columns beside its key, as resolved expressions; the values of its inputs if it selects none."""
    key = view.key or known[view.first].key
    if view.select is not None:
        return {n: text for n, text in resolved(view.select, view, known).items() if n not in key}
    old = {} if view.key is None else {n: f"{view.first}.{n}" for n in known[view.first].key if n not in view.key}
    every = {column: f"{name}.{column}" for name in view.inputs for column in known[name].value if column not in key}
    return {**old, **every}


def computed(view: View, known: Mapping[str, Shape]) -> dict[str, str]:
    """Every column of a view as an expression over `input.column`; of an aggregate its argument."""
    key = {column: f"{view.first}.{column}" for column in known[view.first].key}
    if view.aggregate is not None:
        names = scope(view, known)
        groups = resolved(view.group_by, view, known) or key
        return groups | {column: aggregate(text, names)[1] for column, text in view.aggregate.items()}
    return (resolved(view.key, view, known) or key) | selected(view, known)


def resolved(texts: Mapping[str, str] | None, view: View, known: Mapping[str, Shape]) -> dict[str, str]:
    """Expressions over a view's inputs with every column as `input.column`."""
    names = scope(view, known)
    return {name: resolve(text, names) for name, text in (texts or {}).items()}


def expressions(view: View, known: Mapping[str, Shape]) -> dict[Place, tuple[str, Scope]]:
    """The view's expressions over one row by their places in it, as written, with the names that each can use."""
    names = scope(view, known)
    first = {view.first: names[view.first]}
    found: dict[Place, tuple[str, Scope]] = {}
    if view.join:
        one = isinstance(view.join.on, str)
        found |= {("join", "on", *(() if one else (n,))): (text, first) for n, text in enumerate(view.join.keys)}
    if view.where is not None:
        found["where",] = (view.where, names)
    for field in ("select", "key", "group_by"):
        found |= {(field, column): (text, names) for column, text in (getattr(view, field) or {}).items()}
    return found


def scope(view: View, known: Mapping[str, Shape]) -> dict[str, list[str]]:
    """The names that a view's expressions can use: input -> columns."""
    return {name: list(known[name].columns) for name in view.inputs}
