"""Checks of a view's reading: fields and inputs of the other reading, and what Kafka Streams does not have.

Pure, without Spark.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta

from hindcast.contract import gates
from hindcast.contract.expressions import parse_aggregate
from hindcast.contract.model import Contract
from hindcast.contract.shapes import FieldPath, Shape, view_scope
from hindcast.contract.types import format_duration
from hindcast.contract.view import View
from hindcast.contract.view_checks import Complaint, input_fields


def check_semantics(name: str, known: Mapping[str, Shape], contract: Contract) -> Iterator[Complaint]:
    """Yield every complaint about the reading of a view; `known` has the shapes of the view and its inputs."""
    view, location = contract.views[name], ("views", name)
    is_corrected = view.semantics == "corrected"
    for complaint in _check_corrected(view, contract) if is_corrected else _check_kafka(name, known, contract):
        yield complaint._replace(location=(*location, *complaint.location))
    if view.semantics == "kafka":
        yield from _check_gates(location, view)


def check_versioned(contract: Contract) -> Iterator[Complaint]:
    """Yield complaints about topics with `versioned: false` where it has no effect."""
    for name, topic in contract.topics.items():
        if topic.versioned:
            continue
        place = ("topics", name, "versioned")
        if topic.read == "stream":
            yield Complaint(place, "versioned is for tables, but this topic is a stream", "remove it")
        elif not any(view.semantics == "kafka" and name in view.inputs for view in contract.views.values()):
            found = f"versioned: false has no effect: no kafka view reads {name}, and it changes no corrected answer"
            yield Complaint(place, found, "remove it, or write semantics: kafka in a view that reads it")


_KAFKA_ONLY_FIELDS = {
    "wait": "how runs cut the log changes no corrected answer",
    "history_retention": "a corrected table has all its versions",
    "suppress": "a corrected table has every change at its own time",
    "emit": "a corrected window is revised, and windowClosed tells whether it still can be",
    "store_retention": "grace alone says which events a corrected window takes",
}
"""The fields of the kafka reading, and why a corrected view has no use for them."""

_AGGREGATE_FUNCTIONS = ("count", "sum", "min", "max", "avg")
_WITHOUT_SUBTRACTOR = ("min", "max")
_SUPPRESS_RULE = "Kafka Streams suppresses only tables that are not versioned (KIP-914)"


def _check_corrected(view: View, contract: Contract) -> Iterator[Complaint]:
    """Yield complaints about inputs and fields of the kafka reading in a corrected view."""
    for place, source in input_fields(view).items():
        if source in contract.views and contract.views[source].semantics == "kafka":
            found = f"'{source}' is a kafka view: it has what an application emits, not what is true and when"
            yield Complaint(place, found, f"write semantics: kafka here too, or in views.{source} semantics: corrected")
    for field, why in _KAFKA_ONLY_FIELDS.items():
        part, place = (view, (field,)) if field in View.model_fields else (view.window, ("window", field))
        if part is not None and getattr(part, field) != type(part).model_fields[field].default:
            yield Complaint(
                place, f"{field} has no use in a corrected view", f"remove it: {why}; or write semantics: kafka"
            )
    if view.join and view.join.table and view.join.grace is not None and view.join.table in contract.topics:
        yield from _check_grace_length(
            view.join.grace, view.join.table, contract.topics[view.join.table].history_retention
        )


def _check_kafka(name: str, known: Mapping[str, Shape], contract: Contract) -> Iterator[Complaint]:
    """Yield every complaint about a kafka view, except about its gates."""
    view = contract.views[name]
    complaints = [*_check_inputs(view, contract)]
    yield from complaints
    if not complaints:
        yield from _check_columns(known[name])
        yield from _check_wait(name, view, contract)
        yield from _check_operators(view, known)
        yield from _check_history_retention(view, known[name])
        yield from _check_suppress(view, known[name], contract)
        yield from _check_grace(view, contract)
        yield from _check_window(view)


def _check_columns(shape: Shape) -> Iterator[Complaint]:
    for column in shape.columns:
        if column.lower() == "headers":
            found = f"a kafka view cannot have a column '{column}': it has the headers of its records under that name"
            yield Complaint((), found, "rename the column")


def _check_inputs(view: View, contract: Contract) -> Iterator[Complaint]:
    """Yield complaints about inputs that do not have records in processing order: topics and kafka views do."""
    for place, source in input_fields(view).items():
        if source in contract.inputs:
            found = f"'{source}' is another pipeline's table: it does not have the records in their order of arrival"
            yield Complaint(place, found, "name the topic itself under topics:, or write semantics: corrected")
        elif source in contract.views and contract.views[source].semantics != "kafka":
            found = f"'{source}' is a corrected view: it has what is true and when, not what an application emits"
            yield Complaint(place, found, f"write semantics: kafka in views.{source} too, or corrected here")
        elif source in contract.topics and contract.topics[source].ttl is not None:
            found = f"'{source}' has a ttl, but in Kafka Streams only a record ends a table's row"
            yield Complaint(place, found, f"remove topics.{source}.ttl, or write semantics: corrected")
        elif source in contract.topics and contract.topics[source].hold == "row":
            found = f"'{source}' holds failing rows back (hold: row), but Kafka Streams reads every record"
            yield Complaint(place, found, f"remove topics.{source}.hold, or write semantics: corrected")
        elif source in contract.topics and contract.topics[source].pattern is not None:
            found = f"'{source}' is a pattern of topics, which are not known to be co-partitioned"
            yield Complaint(place, found, "give each topic its own entry, or write semantics: corrected")


def _check_wait(name: str, view: View, contract: Contract) -> Iterator[Complaint]:
    for source in view.inputs:
        other = contract.views.get(source)
        if other is not None and other.wait != view.wait:
            waits, not_ = (name, source) if view.wait else (source, name)
            fix = "write the same in both: views made of each other are one application, with one processing order"
            yield Complaint(("wait",), f"{waits} waits for every input partition, {not_} does not", fix)


def _check_operators(view: View, known: Mapping[str, Shape]) -> Iterator[Complaint]:
    """Yield complaints about what Kafka Streams has no operator for."""
    if view.table and view.key is not None:
        fix = "group_by: and aggregate:, or semantics: corrected"
        yield Complaint(("key",), "a table cannot get a new key: in Kafka Streams only an aggregate gives one", fix)
    if view.table and view.join and view.where is not None:
        fix = "filter the join in a separate view: a filter of a table is a step with its own tombstones"
        yield Complaint(("where",), "where cannot be used in a join of two tables", fix)
    for column, text in (view.aggregate or {}).items():
        function, _ = parse_aggregate(text, view_scope(view, known))
        if function not in _AGGREGATE_FUNCTIONS:
            fix = f"write {', '.join(_AGGREGATE_FUNCTIONS[:-1])} or {_AGGREGATE_FUNCTIONS[-1]}, or semantics: corrected"
            yield Complaint(("aggregate", column), f"{function} is not available in a kafka view", fix)
        elif view.table and function in _WITHOUT_SUBTRACTOR:
            found = f"{function} of a table: Kafka Streams subtracts the old value, and {function} cannot"
            yield Complaint(("aggregate", column), found, "write count, sum or avg, or semantics: corrected")


def _check_history_retention(view: View, shape: Shape) -> Iterator[Complaint]:
    """Yield a complaint about history_retention of a result that has no store of its own."""
    if view.history_retention is None:
        return
    if shape.kind == "windows":
        kind, fix = "windows", "remove it: window.store_retention says how far back their store goes"
    elif shape.kind != "versions":
        kind, fix = "streams", "remove it: it is for tables"
    elif not view.has_store:
        fix = f"remove it: a filter or mapValues has no store of its own, so a look-up goes on to {view.first_input}"
        kind = "transformations"
    else:
        return
    yield Complaint(("history_retention",), f"history_retention is not for {kind}", fix)


def _check_suppress(view: View, shape: Shape, contract: Contract) -> Iterator[Complaint]:
    """Yield complaints about suppress: KIP-914 allows it for unversioned tables; a transformation is as its input."""
    if view.suppress is None:
        return
    if shape.kind == "windows":
        fix = "write window.emit: suppress_until_window_closes instead"
        yield Complaint(("suppress",), "suppress is not for windows", fix)
    elif shape.kind != "versions":
        yield Complaint(("suppress",), "suppress is not for streams", "remove it: it is for tables")
    elif view.has_store:
        yield Complaint(
            ("suppress",),
            "suppress is not for aggregates and joins",
            "suppress it in a separate view, with table: this one",
        )
    elif contract.find_versioning(view.first_input)[0]:  # rule: versions are not held back
        store = contract.find_store_owner(view.first_input)
        instead = f"write versioned: false in topics.{store}"
        if store in contract.views:
            instead = f"remove history_retention in views.{store}"
        found = f"suppress is not for versioned tables: {_describe_lookup(view.first_input, contract)}"
        yield Complaint(("suppress",), found, f"{instead}, or remove suppress: {_SUPPRESS_RULE}")


def _check_grace(view: View, contract: Contract) -> Iterator[Complaint]:
    """Yield complaints about grace; with KIP-923 a waiting event needs a versioned store that still has its time."""
    join = view.join
    if join is None or join.table is None or join.grace is None:
        return
    versioned, retention = contract.find_versioning(join.table)
    table = _describe_lookup(join.table, contract)
    if versioned:  # rule: a grace period needs a versioned table
        yield from _check_grace_length(join.grace, table, retention)
    else:
        fix = f"{_suggest_versioned(join.table, contract)}, or remove grace"
        yield Complaint(("join", "grace"), f"grace needs a versioned table: {table} is not versioned", fix)


def _check_grace_length(grace: timedelta, table: str, retention: timedelta | None) -> Iterator[Complaint]:
    if retention is not None and grace > retention:  # rule: a grace period may be as long as the retention
        found = f"grace is longer than the history retention of {table}, {format_duration(retention)}"
        fix = "history retention must be at least grace: raise it, or lower grace"
        yield Complaint(("join", "grace"), found, fix)


def _describe_lookup(name: str, contract: Contract) -> str:
    """Return a table's name, and the table in whose store it is looked up if that is another one."""
    store = contract.find_store_owner(name)
    return name if store == name else f"{name} (looked up in {store})"


def _suggest_versioned(name: str, contract: Contract) -> str:
    """Return the fix that makes an unversioned table versioned."""
    store = contract.find_store_owner(name)
    if store in contract.topics:
        return f"write versioned: true in topics.{store}"
    if contract.views[store].suppress is not None:
        return f"join what {store} is made of (a suppressed table is never versioned)"
    return f"write history_retention: in views.{store}"


def _check_window(view: View) -> Iterator[Complaint]:
    window = view.window
    if (
        window is not None
        and window.store_retention is not None
        and window.store_retention < window.least_store_retention
    ):
        found = (
            f"store_retention is shorter than what its windows need, {format_duration(window.least_store_retention)}"
        )
        fix = "write at least size + grace, 2 x sliding + grace or gap + grace, or leave it out"
        yield Complaint(("window", "store_retention"), found, fix)


def _check_gates(location: FieldPath, view: View) -> Iterator[Complaint]:
    for number, gate in enumerate(view.expect):
        if gate.on_failure == "quarantine":
            found = (
                "on_failure: quarantine cannot be used in a kafka view: it has every record, so none can be held back"
            )
            yield gates.build_complaint((*location, "expect", number, "on_failure"), found, "write stop or warn")
