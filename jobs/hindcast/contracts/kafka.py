"""What can be wrong with a view's reading: fields and inputs of the other one, and what Kafka Streams has not.

Pure, without Spark.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any

from hindcast.contracts import gates
from hindcast.contracts.expressions import aggregate
from hindcast.contracts.model import Contract
from hindcast.contracts.shapes import Shape, scope
from hindcast.contracts.types import written
from hindcast.contracts.view import View
from hindcast.contracts.views import Complaint, named


def complaints(name: str, known: Mapping[str, Shape], contract: Contract) -> Iterator[Complaint]:
    """Every complaint about the reading of a view that is right otherwise; its own shape is known too."""
    view, location = contract.views[name], ("views", name)
    found = _corrected(view, contract) if view.semantics == "corrected" else _kafka(name, known, contract)
    for complaint in found:
        yield complaint._replace(location=(*location, *complaint.location))
    if view.semantics == "kafka":
        yield from _gates(location, view)


def unread(contract: Contract) -> Iterator[Complaint]:
    """Topics that are said not to be versioned, where nothing asks."""
    for name, topic in contract.topics.items():
        if topic.versioned:
            continue
        place = ("topics", name, "versioned")
        if topic.read == "stream":
            yield Complaint(place, "versioned is for tables, this topic is a stream", "remove it")
        elif not any(view.semantics == "kafka" and name in view.inputs for view in contract.views.values()):
            told = f"no kafka view reads {name}, and it changes no corrected answer"
            yield Complaint(place, f"versioned: false: {told}", "remove it, or write semantics: kafka in a view of it")


_CORRECTED = {
    "wait": "how runs cut the log changes no corrected answer",
    "history_retention": "a corrected table has all its versions",
    "suppress": "a corrected table has every change at its own time",
    "emit": "a corrected window is revised, and windowClosed tells whether it still can be",
    "store_retention": "grace alone says which events a corrected window takes",
}
"""The fields of the kafka reading, and why the corrected one has no use for them."""

_FOLDS = ("count", "sum", "min", "max", "avg")
_WITHOUT_SUBTRACTOR = ("min", "max")
_UNSUPPRESSED = "Kafka Streams suppresses only tables that are not versioned (KIP-914)"


def _corrected(view: View, contract: Contract) -> Iterator[Complaint]:
    """Of a corrected view: inputs and fields of the kafka reading."""
    for place, wanted in named(view).items():
        if wanted in contract.views and contract.views[wanted].semantics == "kafka":
            found = f"'{wanted}' is a kafka view: what an application emits, not what is true and when"
            yield Complaint(place, found, f"write semantics: kafka here too, or in views.{wanted} semantics: corrected")
    for field, why in _CORRECTED.items():
        part, place = (view, (field,)) if field in View.model_fields else (view.window, ("window", field))
        if part is not None and getattr(part, field) != type(part).model_fields[field].default:
            yield Complaint(place, f"{field} in a corrected view", f"remove it: {why}; or write semantics: kafka")
    if view.join and view.join.table and view.join.grace is not None and view.join.table in contract.topics:
        yield from _longer(view.join.grace, view.join.table, contract.topics[view.join.table].history_retention)


def _kafka(name: str, known: Mapping[str, Shape], contract: Contract) -> Iterator[Complaint]:
    """Of a kafka view: all but its gates."""
    view = contract.views[name]
    wrong = [*_inputs(view, contract)]
    yield from wrong
    if not wrong:
        yield from _columns(known[name])
        yield from _wait(name, view, contract)
        yield from _operators(view, known)
        yield from _history_retention(view, known[name])
        yield from _suppress(view, known[name], contract)
        yield from _grace(view, contract)
        yield from _window(view)


def _columns(shape: Shape) -> Iterator[Complaint]:
    for column in shape.columns:
        if column.lower() == "headers":
            found = f"a column '{column}' in a kafka view, which has the headers of its records under that name"
            yield Complaint((), found, "give the column another name")


def _inputs(view: View, contract: Contract) -> Iterator[Complaint]:
    """A kafka view is made of records in processing order: of topics, and of what other kafka views emit."""
    for place, wanted in named(view).items():
        if wanted in contract.inputs:
            found = f"'{wanted}' is another pipeline's table: it does not have the records in the order they came in"
            yield Complaint(place, found, "name the topic itself under topics:, or write semantics: corrected")
        elif wanted in contract.views and contract.views[wanted].semantics != "kafka":
            found = f"'{wanted}' is a corrected view: it has what is true and when, not what an application emits"
            yield Complaint(place, found, f"write semantics: kafka in views.{wanted} too, or corrected here")
        elif wanted in contract.topics and contract.topics[wanted].ttl is not None:
            found = f"'{wanted}' has a ttl, and a table of Kafka Streams ends only by its records"
            yield Complaint(place, found, f"remove topics.{wanted}.ttl, or write semantics: corrected")
        elif wanted in contract.topics and contract.topics[wanted].hold == "row":
            found = f"'{wanted}' holds failing rows back (hold: row), and Kafka Streams reads every record"
            yield Complaint(place, found, f"remove topics.{wanted}.hold, or write semantics: corrected")
        elif wanted in contract.topics and contract.topics[wanted].pattern is not None:
            found = (
                f"'{wanted}' is a pattern of topics: nothing says that their partitions go together (co-partitioning)"
            )
            yield Complaint(place, found, "name each topic in an entry of its own, or write semantics: corrected")


def _wait(name: str, view: View, contract: Contract) -> Iterator[Complaint]:
    for wanted in view.inputs:
        other = contract.views.get(wanted)
        if other is not None and other.wait != view.wait:
            waits, not_ = (name, wanted) if view.wait else (wanted, name)
            mend = "write the same in both: views made of each other are one application, with one processing order"
            yield Complaint(("wait",), f"{waits} waits for every input partition, {not_} does not", mend)


def _operators(view: View, known: Mapping[str, Shape]) -> Iterator[Complaint]:
    """What Kafka Streams has no operator for."""
    if view.table and view.key is not None:
        mend = "group_by: and aggregate:, or semantics: corrected"
        yield Complaint(("key",), "a new key for a table: Kafka Streams has it only by an aggregate", mend)
    if view.table and view.join and view.where is not None:
        mend = "filter the join in a view of its own: a filter of a table is a step with tombstones of its own"
        yield Complaint(("where",), "where in a join of two tables", mend)
    for column, text in (view.aggregate or {}).items():
        function, _ = aggregate(text, scope(view, known))
        if function not in _FOLDS:
            mend = f"write {', '.join(_FOLDS[:-1])} or {_FOLDS[-1]}, or semantics: corrected"
            yield Complaint(("aggregate", column), f"no {function} in a kafka view", mend)
        elif view.table and function in _WITHOUT_SUBTRACTOR:
            found = f"{function} of a table: Kafka Streams takes the old value out again, and {function} cannot"
            yield Complaint(("aggregate", column), found, "write count, sum or avg, or semantics: corrected")


def _history_retention(view: View, shape: Shape) -> Iterator[Complaint]:
    """It is for results that are put in a store of their own."""
    if view.history_retention is None:
        return
    if shape.kind == "windows":
        found, mend = "of windows", "remove it: window.store_retention says how far back their store goes"
    elif shape.kind != "versions":
        found, mend = "of a stream", "remove it: it is for tables"
    elif not view.stored:
        mend = f"remove it: a filter or mapValues has no store of its own, a look-up goes on to {view.first}"
        found = "of a transformation"
    else:
        return
    yield Complaint(("history_retention",), f"history_retention {found}", mend)


def _suppress(view: View, shape: Shape, contract: Contract) -> Iterator[Complaint]:
    """KIP-914: suppress() is for tables that are not versioned, and a transformation is what its input is."""
    if view.suppress is None:
        return
    if shape.kind == "windows":
        mend = "write window.emit: suppress_until_window_closes instead"
        yield Complaint(("suppress",), "suppress of windows", mend)
    elif shape.kind != "versions":
        yield Complaint(("suppress",), "suppress of a stream", "remove it: it is for tables")
    elif view.stored:
        yield Complaint(("suppress",), "suppress of a result", "suppress it in a view of its own: table: this one")
    elif contract.versioned(view.first)[0]:
        store = contract.store(view.first)
        instead = f"write versioned: false in topics.{store}"
        if store in contract.views:
            instead = f"remove history_retention in views.{store}"
        found = f"suppress of a versioned table: {_looked_up(view.first, contract)}"
        yield Complaint(("suppress",), found, f"{instead}, or remove suppress: {_UNSUPPRESSED}")


def _grace(view: View, contract: Contract) -> Iterator[Complaint]:
    """KIP-923: an event that waits is looked up by its own time, in a store that must still have it."""
    join = view.join
    if join is None or join.table is None or join.grace is None:
        return
    versioned, retention = contract.versioned(join.table)
    told = _looked_up(join.table, contract)
    if versioned:
        yield from _longer(join.grace, told, retention)
    else:
        mend = f"{_made_versioned(join.table, contract)}, or remove grace"
        yield Complaint(("join", "grace"), f"grace on a table that is not versioned: {told}", mend)


def _longer(grace: timedelta, told: str, retention: timedelta | None) -> Iterator[Complaint]:
    if retention is not None and grace > retention:
        found = f"grace is longer than the history retention of {told}, {written(retention)}"
        mend = "history retention must be at least grace: raise it, or lower grace"
        yield Complaint(("join", "grace"), found, mend)


def _looked_up(name: str, contract: Contract) -> str:
    """A table's name, with the one whose store it is looked up in if that is another."""
    store = contract.store(name)
    return name if store == name else f"{name} (looked up in {store})"


def _made_versioned(name: str, contract: Contract) -> str:
    """What would make a table versioned that is not."""
    store = contract.store(name)
    if store in contract.topics:
        return f"write versioned: true in topics.{store}"
    if contract.views[store].suppress is not None:
        return f"join what {store} is made of (a suppressed table is never versioned)"
    return f"write history_retention: in views.{store}"


def _window(view: View) -> Iterator[Complaint]:
    window = view.window
    if window is not None and window.store_retention is not None and window.store_retention < window.reach:
        found = f"store_retention is shorter than what its windows need, {written(window.reach)}"
        mend = "write at least size + grace, 2 x sliding + grace or gap + grace, or leave it out"
        yield Complaint(("window", "store_retention"), found, mend)


def _gates(location: tuple[Any, ...], view: View) -> Iterator[Complaint]:
    for number, gate in enumerate(view.expect):
        if gate.on_failure == "quarantine":
            found = "on_failure: quarantine in a kafka view, which is record for record: none can be held back"
            yield gates.complaint((*location, "expect", number, "on_failure"), found, "write stop or warn")
