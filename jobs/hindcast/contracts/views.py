"""What can be wrong with a view: its inputs, how its parts go together, its names, its join. Pure, without Spark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from itertools import chain
from typing import Any, NamedTuple

from hindcast.contracts.expressions import WRITTEN_OUT, aggregate, clash, plain_type, resolve
from hindcast.contracts.model import Contract
from hindcast.contracts.moments import find_today_beside
from hindcast.contracts.parsing import ExpressionError
from hindcast.contracts.shapes import Shape, expressions, resolved, scope
from hindcast.contracts.view import Join, View, Window
from hindcast.errors import nearest


class Complaint(NamedTuple):
    """What is wrong with a contract: the path of the field, what was found, what would do."""

    location: tuple[Any, ...]
    found: str
    mend: str


def malformed(name: str, view: View, names: Sequence[str]) -> Iterator[Complaint]:
    """What is wrong with a view by itself: fields that do not go together, inputs that are neither topics nor views."""
    for complaint in _together(view):
        yield complaint._replace(location=("views", name, *complaint.location))
    for field, wanted in named(view).items():
        if wanted not in names:
            fitting = [n for n in names if n != name]
            yield Complaint(("views", name, *field), f"no {field[-1]} '{wanted}'", nearest(wanted, fitting))


def complaints(name: str, view: View, known: Mapping[str, Shape], contract: Contract) -> Iterator[Complaint]:
    """Every complaint about a view whose inputs are there, the first of them first."""
    location = ("views", name)
    for complaint in chain(_kinds(view, known, contract), _expressions(view, known)):
        yield complaint._replace(location=(*location, *complaint.location))
    for complaint in chain(_join(view, known), _columns(view, known)):
        yield complaint._replace(location=(*location, *complaint.location))


def named(view: View) -> dict[tuple[str, ...], str]:
    """The fields that name inputs."""
    found: dict[tuple[str, ...], str | None] = {("stream",): view.stream, ("table",): view.table}
    if view.join:
        found |= {("join", "stream"): view.join.stream, ("join", "table"): view.join.table}
    return {field: name for field, name in found.items() if name is not None}


_LENGTHS = ("tumbling", "hopping", "sliding", "session")
_ZERO = timedelta(0)
_KIND = {"stream": "events", "table": "versions"}


def _together(view: View) -> Iterator[Complaint]:
    """Fields that exclude or need each other."""
    if (view.stream is None) == (view.table is None):
        yield Complaint((), "a view starts from one input", "write either stream: or table:")
        return
    join = view.join
    if join:
        if (join.stream is None) == (join.table is None):
            yield Complaint(("join",), "a join names one input", "write either table: or stream: under join:")
            return
        if join.stream and view.table:
            yield Complaint(
                ("join", "stream"), "a stream is joined to a table", "start from the stream, join the table"
            )
        if view.aggregate is not None:
            yield Complaint(("aggregate",), "a view joins or aggregates", "aggregate the join in a view of its own")
        yield from _join_fields(view, join)
    if view.aggregate is None:
        for field in ("group_by", "window"):
            if getattr(view, field) is not None:
                yield Complaint((field,), f"{field} without an aggregate", "add aggregate:")
    else:
        for field, instead in (("select", "aggregate"), ("key", "group_by")):
            if getattr(view, field) is not None:
                yield Complaint((field,), f"{field} in an aggregate", f"use {instead}:")
        if not view.aggregate:
            yield Complaint(("aggregate",), "nothing is aggregated", "write for example {orders: count(*)}")
    if view.window is not None:
        yield from _window(view, view.window)


def _join_fields(view: View, join: Join) -> Iterator[Complaint]:
    if join.stream:
        if join.on is not None:
            mend = "re-key the stream in a view of its own"
            yield Complaint(("join", "on"), "on in a join of two streams", mend)
        if join.grace is not None and view.semantics == "corrected":
            mend = "remove it: no event of a corrected join is too late; or write semantics: kafka"
            yield Complaint(("join", "grace"), "grace in a join of two streams", mend)
        if join.before is None and join.after is None:
            yield Complaint(("join",), "a join of two streams needs a window", "write before: and after: 5 minutes")
        return
    for field in ("before", "after"):
        if getattr(join, field) is not None:
            yield Complaint(("join", field), f"{field} in a join with a table", "remove it: a version says itself when")
    if join.how == "outer" and (view.stream or join.on is not None):
        what = "of a stream with a table" if view.stream else "on a foreign key"
        yield Complaint(("join", "how"), f"an outer join {what}", "write inner or left")
    if join.grace is not None and view.table:
        yield Complaint(("join", "grace"), "grace in a join of two tables", "remove it: grace is for streams")


def _window(view: View, window: Window) -> Iterator[Complaint]:
    if view.table:
        yield Complaint(("window",), "windows of a table", "a table's aggregate says itself from when to when")
    given = [n for n in _LENGTHS if getattr(window, n) is not None]
    if len(given) != 1:
        found = f"a window is of one sort, found {' and '.join(given) or 'none'}"
        yield Complaint(("window",), found, f"write one of {', '.join(_LENGTHS)}")
        return
    if (window.hopping is None) != (window.advance is None):
        yield Complaint(("window",), "hopping and advance go together", "write hopping: 1 hour and advance: 10 minutes")
    elif window.advance is not None and window.hopping is not None and not _ZERO < window.advance <= window.hopping:
        yield Complaint(("window", "advance"), "advance is longer than the window", "at most the window's size")
    if not getattr(window, given[0]):
        yield Complaint(("window", given[0]), "a window without length", "write for example 1 hour")


def _kinds(view: View, known: Mapping[str, Shape], contract: Contract) -> Iterator[Complaint]:
    """A stream must be events, a table versions."""
    for field, wanted in named(view).items():
        shape, kind = known[wanted], _KIND[field[-1]]
        if shape.kind == kind:
            continue
        fitting = [name for name, other in known.items() if other.kind == kind]
        mend = nearest(wanted, fitting)
        if wanted in contract.topics or wanted in contract.inputs:
            part = "topics" if wanted in contract.topics else "inputs"
            read = getattr(contract, part)[wanted].read
            yield Complaint(
                field,
                f"'{wanted}' is read as a {read}, not as a {field[-1]}",
                f"{mend}; or read it so: {part}.{wanted}.read: {field[-1]}",
            )
        elif shape.kind in ("windows", "pairs"):
            what = "windows" if shape.kind == "windows" else "pairs of two streams"
            yield Complaint(field, f"'{wanted}' holds {what}, which cannot be an input yet", mend)
        else:
            yield Complaint(field, f"'{wanted}' holds {shape.kind}: it is no {field[-1]}", mend)


def _expressions(view: View, known: Mapping[str, Shape]) -> Iterator[Complaint]:
    """Every expression must parse, name what is there, and be of a type that fits, as far as types are known."""
    types = {f"{i}.{column}": kind for i in view.inputs for column, kind in known[i].columns.items()}
    for place, (text, names) in expressions(view, known).items():
        try:
            yield from _types(place, resolve(text, names), types)
        except ExpressionError as error:
            yield Complaint(place, error.found, error.mend)
    for column, text in (view.aggregate or {}).items():
        try:
            function, argument = aggregate(text, scope(view, known))
        except ExpressionError as error:
            yield Complaint(("aggregate", column), error.found, error.mend)
            continue
        yield from _types(("aggregate", column), argument, types)
        if function in _NUMERIC and plain_type(argument, types) == "string":
            yield Complaint(("aggregate", column), f"{function} of {argument}, a string", _cast(argument))


_NUMERIC = ("sum", "avg", "mean", "median", "std", "stddev", "variance")


def _types(place: tuple[Any, ...], resolved: str, types: Mapping[str, str | None]) -> Iterator[Complaint]:
    """What the plain types in a resolved expression show: a string against a number, a condition that is none."""
    if told := clash(resolved, types):
        yield Complaint(place, told, f"make them alike: {_cast(told.partition(' ')[0])}, or quote the number")
    if told := find_today_beside(resolved, types):
        yield Complaint(place, f"{told} is another one every day", WRITTEN_OUT)
    kind = plain_type(resolved, types) if place == ("where",) else None
    if kind not in (None, "boolean"):
        yield Complaint(place, f"{resolved} is {kind}, not a condition", f"write for example {resolved} IS NOT NULL")


def _cast(resolved: str) -> str:
    return f"cast({resolved} AS double)"


def _columns(view: View, known: Mapping[str, Shape]) -> Iterator[Complaint]:
    """Columns that would stand twice, or whose key is lost."""
    key = view.key or known[view.first].key
    yield from _differ_in_case(view, known)
    if view.aggregate is not None:
        for both in sorted({*(view.group_by or known[view.first].key)} & {*view.aggregate}):
            yield Complaint(("aggregate", both), f"'{both}' is a group too", "choose another name")
        return
    if view.join and view.select is None:
        shared = ({*known[view.first].columns} & {*known[view.second or ""].value}) - {*key}
        if shared:
            found = f"both inputs have a column {', '.join(sorted(shared))}"
            yield Complaint((), found, "name the view's columns with select:")
    for column in set(view.select or ()) & set(key):
        text = (view.select or {})[column].strip()
        if view.key is not None or text not in (column, *(f"{i}.{column}" for i in view.inputs)):
            yield Complaint(("select", column), f"'{column}' is the key and cannot be computed", "choose another name")
    if view.key is not None and view.table:
        kept = {text.removeprefix(f"{view.first}.") for text in resolved(view.key, view, known).values()}
        lost = [column for column in known[view.first].key if column not in kept]
        if lost:
            found = f"the new key leaves out {', '.join(lost)}: two rows could come to one key at one instant"
            yield Complaint(("key",), found, "keep the old key as a part of the new one, or aggregate")


def _differ_in_case(view: View, known: Mapping[str, Shape]) -> Iterator[Complaint]:
    """Columns that only capitals tell apart: to Spark they are one."""
    key = view.group_by or view.key or known[view.first].key
    field = "select" if view.aggregate is None else "aggregate"
    written = getattr(view, field)
    others = written if written is not None else [c for name in view.inputs for c in known[name].columns]
    seen: dict[str, str] = {}
    for column in (*key, *others):
        other = seen.setdefault(column.lower(), column)
        if other != column:
            found = f"'{column}' and '{other}' differ only in capitals: to Spark they are one column"
            yield Complaint((field, column) if written and column in written else (), found, "rename one of them")


def _join(view: View, known: Mapping[str, Shape]) -> Iterator[Complaint]:
    """The two keys of a join must be of the same types."""
    join = view.join
    if join is None or view.second is None:
        return
    if view.first == view.second:
        found = f"{view.first} is joined to itself"
        if view.semantics == "kafka":
            mend = (
                "make a view of it first and join that; each record then comes out twice, as in Kafka Streams "
                "(docs/kafka-parity.md, Several paths)"
            )
            yield Complaint(("join",), found, mend)
        else:
            yield Complaint(("join",), found, "make a view of it first and join that")
    first, second = known[view.first], known[view.second]
    wanted = list(second.key.values())
    if join.on is None:
        own = list(first.key.values())
        if len(own) != len(wanted) or any(a and b and a != b for a, b in zip(own, wanted, strict=False)):
            told = f"the key of {view.first} is {_typed(first.key)}, that of {view.second} {_typed(second.key)}"
            mend = "re-key one of them in a view" if join.stream else "name the columns of the table's key with on:"
            yield Complaint(("join",), told, mend)
    elif len(join.keys) != len(wanted):
        told = f"on: gives {len(join.keys)} of the {len(wanted)} columns of {view.second}'s key: {_typed(second.key)}"
        yield Complaint(("join", "on"), told, "give one expression for each column of the key, in its order")
    else:
        types = {f"{view.first}.{column}": kind for column, kind in first.columns.items()}
        for text, kind in zip(join.keys, wanted, strict=True):
            plain = resolve(text, {view.first: list(first.columns)})
            got = plain_type(plain, types)
            if got and kind and got != kind:
                told = f"{plain} is {got}, the key of {view.second} is {kind}"
                yield Complaint(("join", "on"), told, f"write on: cast({plain} AS {kind})")


def _typed(columns: Mapping[str, str | None]) -> str:
    return ", ".join(f"{name} {kind or 'of a type that Spark finds'}" for name, kind in columns.items())
