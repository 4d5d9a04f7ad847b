"""Checks of a view: its inputs, combinations of fields, names, and join. Pure, without Spark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from itertools import chain
from typing import NamedTuple

from hindcast.common.errors import suggest_nearest
from hindcast.contract.expressions import WRITE_OUT_FIX, find_plain_type, find_type_clash, parse_aggregate, resolve
from hindcast.contract.model import Contract
from hindcast.contract.moments import find_today_beside
from hindcast.contract.parsing import ExpressionError
from hindcast.contract.shapes import FieldPath, Shape, list_column_types, resolve_all, row_expressions, view_scope
from hindcast.contract.view import Join, View, Window


class Complaint(NamedTuple):
    """What is wrong with a contract: the path of the field, what was found, and the fix."""

    location: FieldPath
    found: str
    fix: str


def check_fields(name: str, view: View, names: Sequence[str]) -> Iterator[Complaint]:
    """Yield every complaint about a view by itself: combinations of fields, and unknown inputs."""
    for complaint in _check_field_combinations(view):
        yield complaint._replace(location=("views", name, *complaint.location))
    for field, source in input_fields(view).items():
        if source not in names:
            others = [other for other in names if other != name]
            yield Complaint(("views", name, *field), f"no {field[-1]} '{source}'", suggest_nearest(source, others))


def check_view(name: str, view: View, known: Mapping[str, Shape], contract: Contract) -> Iterator[Complaint]:
    """Yield every complaint about a view whose inputs exist."""
    location = ("views", name)
    for complaint in chain(_check_kinds(view, known, contract), _check_expressions(view, known)):
        yield complaint._replace(location=(*location, *complaint.location))
    for complaint in chain(_check_join(view, known), _check_columns(view, known)):
        yield complaint._replace(location=(*location, *complaint.location))


def input_fields(view: View) -> dict[tuple[str, ...], str]:
    """Return the paths of a view's fields that name inputs, with these names."""
    fields: dict[tuple[str, ...], str | None] = {("stream",): view.stream, ("table",): view.table}
    if view.join:
        fields |= {("join", "stream"): view.join.stream, ("join", "table"): view.join.table}
    return {field: name for field, name in fields.items() if name is not None}


_LENGTHS = ("tumbling", "hopping", "sliding", "session")
_ZERO = timedelta(0)
_KIND = {"stream": "events", "table": "versions"}


def _check_field_combinations(view: View) -> Iterator[Complaint]:
    """Yield complaints about fields that exclude or need each other."""
    if (view.stream is None) == (view.table is None):
        yield Complaint((), "a view must start from one input", "write either stream: or table:")
        return
    join = view.join
    if join:
        if (join.stream is None) == (join.table is None):
            yield Complaint(("join",), "a join must name one input", "write either table: or stream: under join:")
            return
        if join.stream and view.table:
            yield Complaint(
                ("join", "stream"), "a stream cannot be joined to a table", "start from the stream, join the table"
            )
        if view.aggregate is not None:
            yield Complaint(
                ("aggregate",), "a view cannot both join and aggregate", "aggregate the join in a separate view"
            )
        yield from _check_join_fields(view, join)
    if view.aggregate is None:
        for field in ("group_by", "window"):
            if getattr(view, field) is not None:
                yield Complaint((field,), f"{field} needs an aggregate", "add aggregate:")
    else:
        for field, instead in (("select", "aggregate"), ("key", "group_by")):
            if getattr(view, field) is not None:
                yield Complaint((field,), f"{field} cannot be used with an aggregate", f"use {instead}:")
        if not view.aggregate:
            yield Complaint(("aggregate",), "nothing is aggregated", "write for example {orders: count(*)}")
    if view.window is not None:
        yield from _check_window(view, view.window)


def _check_join_fields(view: View, join: Join) -> Iterator[Complaint]:
    if join.stream:
        if join.on is not None:
            fix = "re-key the stream in a separate view"
            yield Complaint(("join", "on"), "on cannot be used in a join of two streams", fix)
        if join.grace is not None and view.semantics == "corrected":
            fix = "remove it: no event of a corrected join is too late; or write semantics: kafka"
            yield Complaint(("join", "grace"), "grace cannot be used in a corrected join of two streams", fix)
        if join.before is None and join.after is None:
            yield Complaint(("join",), "a join of two streams needs a window", "write before: and after: 5 minutes")
        return
    for field in ("before", "after"):
        if getattr(join, field) is not None:
            yield Complaint(
                ("join", field),
                f"{field} cannot be used in a join with a table",
                "remove it: each version has its own period",
            )
    if join.how == "outer" and (view.stream or join.on is not None):
        # What derives rows (derivation.py, join_processors.py) would take it for a left join.
        kind = "of a stream with a table" if view.stream else "on a foreign key"
        yield Complaint(("join", "how"), f"an outer join {kind} is not possible", "write inner or left")
    if join.grace is not None and view.table:
        yield Complaint(
            ("join", "grace"), "grace cannot be used in a join of two tables", "remove it: grace is for streams"
        )


def _check_window(view: View, window: Window) -> Iterator[Complaint]:
    if view.table:
        yield Complaint(
            ("window",), "a table cannot have windows", "remove it: each row of a table's aggregate has its own period"
        )
    given = [n for n in _LENGTHS if getattr(window, n) is not None]
    if len(given) != 1:
        found = f"a window must have exactly one type, found {' and '.join(given) or 'none'}"
        yield Complaint(("window",), found, f"write one of {', '.join(_LENGTHS)}")
        return
    if (window.hopping is None) != (window.advance is None):
        yield Complaint(("window",), "hopping and advance go together", "write hopping: 1 hour and advance: 10 minutes")
    elif window.advance is not None and window.hopping is not None and not _ZERO < window.advance <= window.hopping:
        yield Complaint(("window", "advance"), "advance is longer than the window", "write at most the window's size")
    if not getattr(window, given[0]):
        yield Complaint(("window", given[0]), "a window must be longer than zero", "write for example 1 hour")


def _check_kinds(view: View, known: Mapping[str, Shape], contract: Contract) -> Iterator[Complaint]:
    """Yield complaints about inputs of the wrong kind: a stream must be events, a table versions."""
    for field, source in input_fields(view).items():
        shape, kind = known[source], _KIND[field[-1]]
        if shape.kind == kind:
            continue
        fix = suggest_nearest(source, [name for name, other in known.items() if other.kind == kind])
        if source in contract.topics or source in contract.inputs:
            part = "topics" if source in contract.topics else "inputs"
            read = getattr(contract, part)[source].read
            yield Complaint(
                field,
                f"'{source}' is read as a {read}, not as a {field[-1]}",
                f"{fix}; or write {part}.{source}.read: {field[-1]}",
            )
        elif shape.kind in ("windows", "pairs"):
            content = "windows" if shape.kind == "windows" else "pairs of two streams"
            yield Complaint(field, f"'{source}' holds {content}, which cannot be an input yet", fix)
        else:
            yield Complaint(field, f"'{source}' holds {shape.kind}: it is not a {field[-1]}", fix)


def _check_expressions(view: View, known: Mapping[str, Shape]) -> Iterator[Complaint]:
    """Yield complaints about expressions that do not parse or resolve, or whose type, if known, does not fit."""
    types = list_column_types(view, known)
    for place, (text, names) in row_expressions(view, known).items():
        try:
            yield from _check_types(place, resolve(text, names), types)
        except ExpressionError as error:
            yield Complaint(place, error.found, error.fix)
    for column, text in (view.aggregate or {}).items():
        try:
            function, argument = parse_aggregate(text, view_scope(view, known))
        except ExpressionError as error:
            yield Complaint(("aggregate", column), error.found, error.fix)
            continue
        yield from _check_types(("aggregate", column), argument, types)
        if function in _NUMERIC and find_plain_type(argument, types) == "string":
            yield Complaint(
                ("aggregate", column), f"{function} of {argument}, which is a string", _suggest_cast(argument)
            )


_NUMERIC = ("sum", "avg", "mean", "median", "std", "stddev", "variance")


def _check_types(place: FieldPath, resolved: str, types: Mapping[str, str | None]) -> Iterator[Complaint]:
    """Yield complaints about types in a resolved expression: a string beside a number, a condition that is not one."""
    if found := find_type_clash(resolved, types):
        yield Complaint(
            place, found, f"give them the same type: {_suggest_cast(found.partition(' ')[0])}, or quote the number"
        )
    if found := find_today_beside(resolved, types):
        yield Complaint(place, f"{found} depends on the current day", WRITE_OUT_FIX)
    kind = find_plain_type(resolved, types) if place == ("where",) else None
    if kind not in (None, "boolean"):
        yield Complaint(place, f"{resolved} is {kind}, not a condition", f"write for example {resolved} IS NOT NULL")


def _suggest_cast(resolved: str) -> str:
    return f"cast({resolved} AS double)"


def _check_columns(view: View, known: Mapping[str, Shape]) -> Iterator[Complaint]:
    """Yield complaints about duplicate columns, computed keys, and keys that lose columns."""
    key = view.key or known[view.first_input].key
    yield from _check_case(view, known)
    if view.aggregate is not None:
        for column in sorted({*(view.group_by or known[view.first_input].key)} & {*view.aggregate}):
            yield Complaint(("aggregate", column), f"'{column}' is also a group", "choose another name")
        return
    if view.join and view.select is None:
        shared = ({*known[view.first_input].columns} & {*known[view.second_input or ""].value}) - {*key}
        if shared:
            found = f"both inputs have a column {', '.join(sorted(shared))}"
            yield Complaint((), found, "name the view's columns with select:")
    for column in set(view.select or ()) & set(key):
        text = (view.select or {})[column].strip()
        if view.key is not None or text not in (column, *(f"{i}.{column}" for i in view.inputs)):
            yield Complaint(("select", column), f"'{column}' is the key and cannot be computed", "choose another name")
    if view.key is not None and view.table:
        parts = {text.removeprefix(f"{view.first_input}.") for text in resolve_all(view.key, view, known).values()}
        lost = [column for column in known[view.first_input].key if column not in parts]
        if lost:
            found = f"the new key leaves out {', '.join(lost)}: two rows could have the same key at the same time"
            yield Complaint(("key",), found, "keep the old key as a part of the new one, or aggregate")


def _check_case(view: View, known: Mapping[str, Shape]) -> Iterator[Complaint]:
    """Yield complaints about columns that differ only in case: Spark treats them as one."""
    key = view.group_by or view.key or known[view.first_input].key
    field = "select" if view.aggregate is None else "aggregate"
    written = getattr(view, field)
    others = written if written is not None else [c for name in view.inputs for c in known[name].columns]
    columns = dict.fromkeys((*key, *others))
    if len({*map(str.lower, columns)}) == len(columns):
        return
    seen: dict[str, str] = {}
    for column in columns:
        other = seen.setdefault(column.lower(), column)
        if other != column:
            found = f"'{column}' and '{other}' differ only in case: Spark treats them as one column"
            yield Complaint((field, column) if written and column in written else (), found, "rename one of them")


def _check_join(view: View, known: Mapping[str, Shape]) -> Iterator[Complaint]:
    """Yield complaints about a join whose two keys do not have the same types."""
    join = view.join
    if join is None or view.second_input is None:
        return
    if view.first_input == view.second_input:
        found = f"{view.first_input} is joined to itself"
        if view.semantics == "kafka":
            fix = (
                "make a view of it first and join that; each record then comes out twice, as in Kafka Streams "
                "(docs/kafka-parity.md, Several paths)"
            )
            yield Complaint(("join",), found, fix)
        else:
            yield Complaint(("join",), found, "make a view of it first and join that")
    first, second = known[view.first_input], known[view.second_input]
    expected = list(second.key.values())
    if join.on is None:
        own = list(first.key.values())
        if len(own) != len(expected) or any(a and b and a != b for a, b in zip(own, expected, strict=False)):
            found = (
                f"the key of {view.first_input} is {_format_types(first.key)}, but that of {view.second_input} is "
                f"{_format_types(second.key)}"
            )
            fix = "re-key one of them in a view" if join.stream else "name the columns of the table's key with on:"
            yield Complaint(("join",), found, fix)
    elif len(join.keys) != len(expected):
        found = (
            f"on: gives {len(join.keys)} of the {len(expected)} columns of {view.second_input}'s key: "
            f"{_format_types(second.key)}"
        )
        yield Complaint(("join", "on"), found, "give one expression for each column of the key, in its order")
    else:
        types = {f"{view.first_input}.{column}": kind for column, kind in first.columns.items()}
        for text, kind in zip(join.keys, expected, strict=True):
            plain = resolve(text, {view.first_input: list(first.columns)})
            actual = find_plain_type(plain, types)
            if actual and kind and actual != kind:
                found = f"{plain} is {actual}, but the key of {view.second_input} is {kind}"
                yield Complaint(("join", "on"), found, f"write on: cast({plain} AS {kind})")


def _format_types(columns: Mapping[str, str | None]) -> str:
    return ", ".join(f"{name} {kind or 'of a type that only Spark knows'}" for name, kind in columns.items())
