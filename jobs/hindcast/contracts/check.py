"""What a contract's parts mean to each other: names, keys, expressions, gates. Pure, without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from hindcast.contracts.expressions import ExpressionError, columns, resolve
from hindcast.contracts.model import Contract, Expectation, Topic, View
from hindcast.errors import nearest


class Complaint(NamedTuple):
    """What is wrong with a contract: the path of the field, what was found, what would do."""

    location: tuple[Any, ...]
    found: str
    mend: str


def check(contract: Contract) -> Iterator[Complaint]:
    """Every complaint about a contract whose fields are right one by one."""
    if contract.schedule is not None and not _is_cron(contract.schedule):
        yield Complaint(
            ("schedule",),
            f"'{contract.schedule}' is not a cron expression",
            "write five fields (0 2 * * *) or @hourly, @daily, @weekly, @monthly, @yearly",
        )
    for name, topic in contract.topics.items():
        yield from _topic(("topics", name), topic)
        if name in contract.views:
            yield Complaint(("views", name), f"'{name}' is a topic too", "give the view another name")
        if name in RESERVED:
            yield Complaint(("topics", name), f"'{name}' is the name of one of our own tables", "choose another name")
    for name, view in contract.views.items():
        if name in RESERVED:
            yield Complaint(("views", name), f"'{name}' is the name of one of our own tables", "choose another name")
        yield from _view(contract, name, view)


def scope(contract: Contract, view: View) -> dict[str, list[str]]:
    """The names that a view's expressions can use: input -> columns."""
    return {name: [*t.key, *t.value] for name in (view.stream, view.join.table) if (t := contract.topics.get(name))}


def selected(contract: Contract, view: View) -> dict[str, str]:
    """A view's columns beside its key, as resolved expressions; the values of both inputs if it selects none."""
    names = scope(contract, view)
    key = contract.topics[view.stream].key
    if view.select is not None:
        chosen = {name: resolve(text, names) for name, text in view.select.items()}
        return {name: text for name, text in chosen.items() if name not in key}
    return {column: f"{name}.{column}" for name in names for column in contract.topics[name].value}


RESERVED = ("runs", "quarantine", "logs")
"""Names in a pipeline's folder of the warehouse that are not for topics or views."""

_PRESETS = ("@hourly", "@daily", "@weekly", "@monthly", "@yearly")
_FIELDS = 5


def _is_cron(text: str) -> bool:
    if text in _PRESETS:
        return True
    fields = text.split()
    return len(fields) == _FIELDS and all(set(f) <= set("0123456789*/,-LW#?ABCDEFGHIJKLMNOPQRSTUVWXYZ") for f in fields)


def _topic(location: tuple[Any, ...], topic: Topic) -> Iterator[Complaint]:
    seen: dict[str, str] = {}
    for part, name in [("key", name) for name in topic.key] + [("value", name) for name in topic.value]:
        if name.lower() in seen:
            found = f"column '{name}' stands in the {seen[name.lower()]} already (case does not count)"
            yield Complaint((*location, part, name), found, "rename or remove one")
        seen[name.lower()] = part
    if topic.keyed_as == "string" and len(topic.key) != 1:
        yield Complaint(
            (*location, "key_format"), f"a string key has one column, found {len(topic.key)}", "write key_format: json"
        )
    if topic.read == "stream" and topic.history_retention is not None:
        yield Complaint(
            (*location, "history_retention"), "history_retention is for tables, this topic is a stream", "remove it"
        )
    yield from _gates(location, topic.expect, [*topic.key, *topic.value])


def _view(contract: Contract, name: str, view: View) -> Iterator[Complaint]:
    location = ("views", name)
    for field, wanted, read in ((("stream",), view.stream, "stream"), (("join", "table"), view.join.table, "table")):
        input_ = contract.topics.get(wanted)
        fitting = [n for n, t in contract.topics.items() if t.read == read]
        if input_ is None:
            yield Complaint((*location, *field), f"no {read} '{wanted}'", nearest(wanted, fitting))
            return
        if input_.read != read:
            mend = f"{nearest(wanted, fitting)}; or read it so: topics.{wanted}.read: {read}"
            yield Complaint((*location, *field), f"'{wanted}' is read as a {input_.read}, not as a {read}", mend)
            return
    names = scope(contract, view)
    yield from _expressions(location, view, names)
    yield from _join_key(contract, location, view)
    key = contract.topics[view.stream].key
    shared = {*names[view.stream]} & {*contract.topics[view.join.table].value}
    if view.select is None and shared:
        both = ", ".join(sorted(shared))
        yield Complaint(location, f"both inputs have a column {both}", "name the view's columns with select:")
    for column in set(view.select or ()) & set(key):
        if (view.select or {})[column].strip() not in (column, f"{view.stream}.{column}"):
            yield Complaint(
                (*location, "select", column), f"'{column}' is the key and cannot be computed", "choose another name"
            )
    try:
        yield from _gates(location, view.expect, [*key, *selected(contract, view)])
    except ExpressionError:
        return


def _expressions(location: tuple[Any, ...], view: View, names: dict[str, list[str]]) -> Iterator[Complaint]:
    texts: dict[tuple[Any, ...], tuple[str, dict[str, list[str]]]] = {}
    if view.join.on is not None:
        texts["join", "on"] = (view.join.on, {view.stream: names[view.stream]})
    if view.where is not None:
        texts["where",] = (view.where, names)
    texts |= {("select", column): (text, names) for column, text in (view.select or {}).items()}
    for field, (text, known) in texts.items():
        try:
            resolve(text, known)
        except ExpressionError as error:
            yield Complaint((*location, *field), error.found, error.mend)


def _join_key(contract: Contract, location: tuple[Any, ...], view: View) -> Iterator[Complaint]:
    """The looked-up key's type must be that of the table's key."""
    stream, table = contract.topics[view.stream], contract.topics[view.join.table]
    types = {f"{view.stream}.{name}": kind for name, kind in {**stream.key, **stream.value}.items()}
    if view.join.on is None:
        if list(stream.key.values()) != list(table.key.values()):
            found = f"the key of {view.stream} is {_typed(stream.key)}, that of {view.join.table} {_typed(table.key)}"
            yield Complaint((*location, "join"), found, "name the columns of the table's key with on:")
        return
    if len(table.key) != 1:
        found = f"on: gives one column, the key of {view.join.table} has {len(table.key)}: {_typed(table.key)}"
        yield Complaint((*location, "join", "on"), found, "join by the whole key (leave on: out)")
        return
    try:
        read = columns(view.join.on, {view.stream: [*stream.key, *stream.value]})
    except ExpressionError:
        return
    plain = next(iter(read)) if len(read) == 1 else None
    if plain in types and view.join.on.strip() in (plain, plain.split(".")[1]):
        wanted = next(iter(table.key.values()))
        if types[plain] != wanted:
            found = f"{plain} is {types[plain]}, the key of {view.join.table} is {wanted}"
            yield Complaint((*location, "join", "on"), found, f"write on: cast({plain} AS {wanted})")


def _gates(location: tuple[Any, ...], gates: tuple[Expectation, ...], known: list[str]) -> Iterator[Complaint]:
    for number, gate in enumerate(gates):
        for column in gate.columns:
            if column not in known:
                yield Complaint((*location, "expect", number), f"no column '{column}' here", nearest(column, known))


def _typed(columns: dict[str, str]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in columns.items())
