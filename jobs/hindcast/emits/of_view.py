"""The form of a kafka view: what its tasks have to know of the contract. Pure, without Spark."""

from __future__ import annotations

from datetime import timedelta
from typing import Literal

from hindcast.contracts import Contract, Join, View, Window, shapes
from hindcast.contracts.expressions import aggregate
from hindcast.contracts.routes import Routes
from hindcast.contracts.shapes import scope
from hindcast.emits.closing import Emit
from hindcast.emits.depth import Way
from hindcast.emits.form import Form, Store
from hindcast.emits.session_windows import SessionWindows
from hindcast.emits.sliding_windows import SlidingWindows
from hindcast.emits.stream_stream import Window as Span
from hindcast.emits.time_windows import TimeWindows
from hindcast.emits.windowed import Windows

Operator = Literal["stream", "table", "stream_table", "table_table", "foreign_key", "pairs", "aggregate", "windows"]


def form(contract: Contract, name: str) -> Form:
    """What a kafka view is for its tasks."""
    it = contract.views[name]
    what, join = operator(it), it.join or Join()
    result = contract.versioned(name) if it.aggregate is not None or what in ("table_table", "foreign_key") else None
    return Form(
        what,
        join.how,
        {side: _store(*contract.versioned(i)) for side, i in enumerate(it.inputs) if i in (it.table, join.table)},
        filters=it.where is not None and it.table is not None,
        result=_store(*result) if result is not None else None,
        grace=_ms(join.grace) if join.grace is not None and join.table else None,
        suppress=_ms(it.suppress) if it.suppress is not None else None,
        span=Span(_ms(join.before), _ms(join.after), _ms(join.grace)) if what == "pairs" else None,
        windows=_windows(it.window) if it.window is not None else None,
        emit=Emit(it.window.emit) if it.window is not None else Emit.UPDATE,
        measures=tuple(measured(it, contract)),
        ways=_ways(contract, name),
        tells=name in Routes(contract).telling,
    )


def operator(it: View) -> Operator:
    """The operator that a view is."""
    if it.aggregate is not None:
        return "windows" if it.window is not None else "aggregate"
    if it.join is None:
        return "table" if it.table else "stream"
    if it.join.stream:
        return "pairs"
    if it.stream:
        return "stream_table"
    return "table_table" if it.join.on is None else "foreign_key"


def gathered(it: View) -> bool:
    """Whether one task has all partitions: where what a key's record does is stored in another key's partition."""
    return operator(it) == "foreign_key" or (it.table is not None and it.group_by is not None)


def measured(it: View, contract: Contract) -> list[str]:
    """The functions of an aggregate's measures; `rows` is count(*)."""
    names = scope(it, shapes(contract))
    told = [aggregate(text, names) for text in (it.aggregate or {}).values()]
    return ["rows" if (function, argument) == ("count", "1") else function for function, argument in told]


def _ways(contract: Contract, name: str) -> tuple[Way, ...]:
    """How the records of its inputs come into a view, if it is processed depth first."""
    routes = Routes(contract)
    if name not in routes.depth_first:
        return ()
    numbers, found = {topic: number for number, topic in enumerate(contract.topics)}, []
    for side, source in enumerate(contract.views[name].inputs):
        its = None
        if source not in routes.depth_first:
            its = {(numbers[topic], length): route for (topic, length), route in routes.of(source).items()}
        found.append(Way(routes.edge(name, side), routes.put(source), source in routes.telling, its))
    return tuple(found)


def _store(versioned: bool, retention: timedelta | None) -> Store:
    return Store(versioned, _ms(retention) if versioned and retention is not None else None)


def _windows(window: Window) -> Windows:
    grace = _ms(window.grace)
    retention = _ms(window.store_retention) if window.store_retention is not None else None
    if window.sliding is not None:
        return SlidingWindows(_ms(window.sliding), grace, retention)
    if window.session is not None:
        return SessionWindows(_ms(window.session), grace, retention)
    size = _ms(window.hopping or window.tumbling)
    return TimeWindows(size, _ms(window.advance) if window.advance is not None else size, grace, retention)


def _ms(length: timedelta | None) -> int:
    return (length or timedelta(0)) // timedelta(milliseconds=1)
