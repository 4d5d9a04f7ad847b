"""The processor specification of a kafka view: what its tasks need to know of the contract. Pure, without Spark."""

from __future__ import annotations

from datetime import timedelta
from typing import Literal

from hindcast.contract import Contract, Join, View, Window, list_shapes
from hindcast.contract.expressions import parse_aggregate
from hindcast.contract.routes import Routes
from hindcast.contract.shapes import view_scope
from hindcast.streams.depth_first import InputRoute
from hindcast.streams.emit_strategy import EmitStrategy
from hindcast.streams.session_windows import SessionWindows
from hindcast.streams.sliding_windows import SlidingWindows
from hindcast.streams.spec import ProcessorSpec, StoreSpec
from hindcast.streams.stream_stream import JoinWindows as Span
from hindcast.streams.time_windows import TimeWindows
from hindcast.streams.windowed import Windows

OperatorKind = Literal["stream", "table", "stream_table", "table_table", "foreign_key", "pairs", "aggregate", "windows"]


def build_spec(contract: Contract, name: str) -> ProcessorSpec:
    """Return the processor specification of a kafka view."""
    view = contract.views[name]
    operator, join = operator_kind(view), view.join or Join()
    result = (
        contract.find_versioning(name)
        if view.aggregate is not None or operator in ("table_table", "foreign_key")
        else None
    )
    return ProcessorSpec(
        operator,
        join.how,
        {
            side: _build_store(*contract.find_versioning(i))
            for side, i in enumerate(view.inputs)
            if i in (view.table, join.table)
        },
        filters=view.where is not None and view.table is not None,
        result=_build_store(*result) if result is not None else None,
        grace=_milliseconds(join.grace) if join.grace is not None and join.table else None,
        suppress=_milliseconds(view.suppress) if view.suppress is not None else None,
        span=Span(_milliseconds(join.before), _milliseconds(join.after), _milliseconds(join.grace))
        if operator == "pairs"
        else None,
        windows=_build_windows(view.window) if view.window is not None else None,
        emit=EmitStrategy(view.window.emit) if view.window is not None else EmitStrategy.UPDATE,
        measures=tuple(measure_functions(view, contract)),
        input_routes=_build_routes(contract, name),
        sends_old_values=name in Routes(contract).telling,
    )


def operator_kind(view: View) -> OperatorKind:
    """Return the operator that computes a view."""
    if view.aggregate is not None:
        return "windows" if view.window is not None else "aggregate"
    if view.join is None:
        return "table" if view.table else "stream"
    if view.join.stream:
        return "pairs"
    if view.stream:
        return "stream_table"
    return "table_table" if view.join.on is None else "foreign_key"


def needs_one_task(view: View) -> bool:
    """Return whether one task must have all partitions: a record can change state in the partition of another key."""
    return operator_kind(view) == "foreign_key" or (view.table is not None and view.group_by is not None)


def measure_functions(view: View, contract: Contract) -> list[str]:
    """Return the functions of an aggregate's measures; `rows` is count(*)."""
    names = view_scope(view, list_shapes(contract))
    calls = [parse_aggregate(text, names) for text in (view.aggregate or {}).values()]
    return ["rows" if (function, argument) == ("count", "1") else function for function, argument in calls]


def _build_routes(contract: Contract, name: str) -> tuple[InputRoute, ...]:
    """Return how the records of its inputs reach a view; empty if it is not processed depth first."""
    routes = Routes(contract)
    if name not in routes.depth_first:
        return ()
    numbers, input_routes = {topic: number for number, topic in enumerate(contract.topics)}, []
    for side, source in enumerate(contract.views[name].inputs):
        by_kind = None
        if source not in routes.depth_first:
            by_kind = {(numbers[topic], length): route for (topic, length), route in routes.find_routes(source).items()}
        input_routes.append(
            InputRoute(routes.find_edge(name, side), routes.find_store_place(source), source in routes.telling, by_kind)
        )
    return tuple(input_routes)


def _build_store(versioned: bool, retention: timedelta | None) -> StoreSpec:
    return StoreSpec(versioned, _milliseconds(retention) if versioned and retention is not None else None)


def _build_windows(window: Window) -> Windows:
    grace = _milliseconds(window.grace)
    retention = _milliseconds(window.store_retention) if window.store_retention is not None else None
    if window.sliding is not None:
        return SlidingWindows(_milliseconds(window.sliding), grace, retention)
    if window.session is not None:
        return SessionWindows(_milliseconds(window.session), grace, retention)
    size = _milliseconds(window.hopping or window.tumbling)
    return TimeWindows(size, _milliseconds(window.advance) if window.advance is not None else size, grace, retention)


def _milliseconds(length: timedelta | None) -> int:
    return (length or timedelta(0)) // timedelta(milliseconds=1)
