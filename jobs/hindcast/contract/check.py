"""Checks of a contract as a whole: names, keys, expressions, gates. Pure, without Spark."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hindcast.common.errors import suggest_nearest
from hindcast.contract import (
    archive_checks,
    arrival,
    bounds,
    envelope,
    formats,
    gates,
    keep,
    names,
    schedule,
    semantics_checks,
    valid_time,
)
from hindcast.contract.model import Contract
from hindcast.contract.parsing import ExpressionError
from hindcast.contract.patterns import MAX_LENGTH, SIMPLER_FIX, SlowPatternError, find_matches
from hindcast.contract.shapes import FieldPath, Shape, list_source_shapes, topic_shape, view_shape
from hindcast.contract.topic import Topic
from hindcast.contract.view_checks import Complaint, check_fields, check_view


def check_contract(contract: Contract) -> Iterator[Complaint]:
    """Yield every complaint about a contract whose fields are valid one by one."""
    if excess := next(_check_size(contract), None):
        yield excess  # the other checks would take too long
        return
    yield from names.check_names(contract)
    yield from schedule.check_schedule(contract)
    yield from schedule.check_closing(contract)
    yield from schedule.check_task_options(contract)
    for name, topic in contract.topics.items():
        yield from _check_topic(("topics", name), topic)
        yield from _check_pattern(("topics", name, "pattern"), topic)
        yield from envelope.check_envelope(("topics", name), topic)
        if name in contract.views:
            yield Complaint(("views", name), f"'{name}' is also a topic", "rename the view")
        yield from gates.check_gates(("topics", name), topic.expect, topic_shape(topic))
        yield from gates.check_hold(("topics", name), topic.hold, contract.expectations(name), topic_shape(topic))
        yield from _check_marks(("topics", name), topic.sensitive, topic_shape(topic))
    yield from _check_matches(contract)
    for name, source in contract.inputs.items():
        for field in ("topics", "views"):
            if name in getattr(contract, field):
                yield Complaint(("inputs", name), f"'{name}' is also in {field}", "rename the input")
        if source.table.startswith(f"{contract.pipeline}."):
            yield Complaint(("inputs", name, "table"), "is a table of this pipeline", "use its own name in the view")
        yield from _check_marks(("inputs", name), source.sensitive, topic_shape(source))
        for column in source.key.keys() & source.value.keys():
            yield Complaint(("inputs", name, "value", column), f"column '{column}' is also in the key", "remove one")
    yield from _check_views(contract)
    yield from semantics_checks.check_versioned(contract)
    yield from keep.check_keep(contract)
    yield from archive_checks.check_archives(contract)


def _check_size(contract: Contract) -> Iterator[Complaint]:
    """Yield what exceeds the bounds of a whole contract."""
    tables = [*contract.topics, *contract.inputs, *contract.views]
    if len(tables) > bounds.TABLES:
        yield Complaint((), f"the pipeline has {len(tables):,} tables, more than {bounds.TABLES}", "split the pipeline")
    texts = [text for topic in contract.topics.values() for text in (topic.valid_time, topic.arrival) if text]
    for view in contract.views.values():
        texts += [view.where or "", *(view.join.keys if view.join else ())]
        texts += [
            text for field in (view.select, view.key, view.group_by, view.aggregate) for text in (field or {}).values()
        ]
    gates = [gate for name in (*contract.topics, *contract.views) for gate in contract.expectations(name)]
    texts += [text for gate in gates for text in gate.kwargs.values() if isinstance(text, str)]
    if sum(len(_TERM.findall(text)) for text in texts) > bounds.ALL_TERMS:
        yield Complaint(
            (), f"expressions and gates have more than {bounds.ALL_TERMS:,} terms in total", "split the pipeline"
        )
    if sum(text.lower().count("timestamp") for text in texts) > bounds.ALL_MOMENTS:
        found = f"expressions mention timestamps more than {bounds.ALL_MOMENTS:,} times"
        yield Complaint((), found, "split the pipeline")
    if len(gates) > bounds.GATES:
        yield Complaint((), f"the pipeline has {len(gates):,} gates, more than {bounds.GATES}", "split the pipeline")


_TERM = re.compile(r"\w+|[^\w\s]")


def _check_topic(location: FieldPath, topic: Topic) -> Iterator[Complaint]:
    seen: dict[str, str] = {}
    for part, name in [("key", name) for name in topic.key] + [("value", name) for name in topic.value]:
        if name.lower() in seen:
            found = f"column '{name}' is already in the {seen[name.lower()]} (case is ignored)"
            yield Complaint((*location, part, name), found, "rename or remove one")
        seen[name.lower()] = part
    yield from formats.check_formats(location, topic)
    for field in ("history_retention", "ttl"):
        if topic.read == "stream" and getattr(topic, field) is not None:
            yield Complaint((*location, field), f"{field} is for tables, but this topic is a stream", "remove it")
    if topic.read == "table" and topic.since is not None:
        yield Complaint(
            (*location, "from"),
            "from is for streams, but this topic is a table",
            "remove it: a table needs all records",
        )
    yield from valid_time.check_time(location, topic)
    yield from arrival.check_arrival(location, topic)
    if topic.ttl is not None and not topic.ttl:
        yield Complaint((*location, "ttl"), "ttl must be longer than zero", "write for example 7 days")


def _check_pattern(place: FieldPath, topic: Topic) -> Iterator[Complaint]:
    pattern = topic.pattern
    if pattern is None:
        return
    if topic.topic is not None:
        yield Complaint(place, "topic and pattern cannot both be set", "remove one of the two")
    if len(pattern) > MAX_LENGTH:
        found = f"a pattern has more than {MAX_LENGTH:,} characters"
        yield Complaint(place, found, "write a shorter one, such as orders-.*")
        return
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        yield Complaint(place, f"'{pattern}' is not a valid regular expression: {error}", "write for example orders-.*")


def _check_matches(contract: Contract) -> Iterator[Complaint]:
    """Yield a complaint about every pattern that matches the topic of another table, or takes too long to."""
    patterns = {name: topic.pattern for name, topic in contract.topics.items() if topic.pattern is not None}
    others = {contract.kafka_topic(other): other for other in contract.topics if other not in patterns}
    if any(complaint for name in patterns for complaint in _check_pattern((), contract.topics[name])):
        return
    try:
        matches = find_matches([*patterns.values()], [*others])
    except SlowPatternError as error:
        name = [*patterns][error.place]
        found = f"'{patterns[name]}' takes too long to match a topic's name"
        yield Complaint(("topics", name, "pattern"), found, SIMPLER_FIX)
        return
    for name, matched in zip(patterns, matches, strict=True):
        for kafka in matched[:1]:
            found = (
                f"the pattern matches {kafka}, the topic of topics.{others[kafka]}: its records would be in two logs"
            )
            fix = f"write a pattern that leaves it out, or remove topics.{others[kafka]}"
            yield Complaint(("topics", name, "pattern"), found, fix)


def _check_views(contract: Contract) -> Iterator[Complaint]:
    """Yield every complaint about the views, each checked after its inputs; views that are left form a cycle."""
    known = list_source_shapes(contract)
    plan = dict(contract.views)
    for name, view in plan.items():
        yield from check_fields(name, view, [*contract.topics, *contract.inputs, *contract.views])
    while plan:
        ready = [name for name, view in plan.items() if known.keys() >= {*view.inputs}]
        if not ready:
            found = (
                f"{' and '.join(plan)} are derived from each other"
                if len(plan) > 1
                else f"{next(iter(plan))} is derived from itself"
            )
            yield Complaint(("views", next(iter(plan))), found, "break the cycle: a view cannot depend on itself")
            return
        for name in ready:
            view = plan.pop(name)
            try:
                yield from check_view(name, view, known, contract)
                known[name] = view_shape(view, known)
                yield from semantics_checks.check_semantics(name, known, contract)
                yield from gates.check_gates(("views", name), view.expect, known[name])
                yield from gates.check_hold(("views", name), view.hold, contract.expectations(name), known[name])
                yield from _check_marks(("views", name), view.sensitive, known[name])
            except ExpressionError:
                return


def _check_marks(location: FieldPath, sensitive: bool | tuple[str, ...], shape: Shape) -> Iterator[Complaint]:
    for column in sensitive if isinstance(sensitive, tuple) else ():
        if column not in shape.columns:
            yield Complaint(
                (*location, "sensitive"), f"no column '{column}' here", suggest_nearest(column, shape.columns)
            )
