"""What a contract's parts mean to each other: names, keys, expressions, gates. Pure, without Spark."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from hindcast.contracts import bounds, envelope, formats, gates, kafka, keep, names, schedule, valid_time
from hindcast.contracts.bounds import ExcessError
from hindcast.contracts.model import Contract
from hindcast.contracts.parsing import ExpressionError
from hindcast.contracts.patterns import first_match
from hindcast.contracts.shapes import Shape, given, topic_shape, view_shape
from hindcast.contracts.topic import Topic
from hindcast.contracts.views import Complaint, complaints, malformed
from hindcast.errors import nearest


def check(contract: Contract) -> Iterator[Complaint]:
    """Every complaint about a contract whose fields are right one by one."""
    if excess := next(_excess(contract), None):
        yield excess  # what follows would take long
        return
    yield from names.complaints(contract)
    yield from schedule.complaints(contract)
    for name, topic in contract.topics.items():
        yield from _topic(("topics", name), topic)
        yield from _pattern(name, contract)
        yield from envelope.complaints(("topics", name), topic)
        if name in contract.views:
            yield Complaint(("views", name), f"'{name}' is a topic too", "give the view another name")
        yield from gates.complaints(("topics", name), topic.expect, topic_shape(topic))
        yield from gates.hold_complaints(("topics", name), topic.hold, topic.expect, topic_shape(topic))
        yield from _marks(("topics", name), topic.sensitive, topic_shape(topic))
    for name, it in contract.inputs.items():
        for field in ("topics", "views"):
            if name in getattr(contract, field):
                yield Complaint(("inputs", name), f"'{name}' is in {field} too", "give the input another name")
        if it.table.startswith(f"{contract.pipeline}."):
            yield Complaint(("inputs", name, "table"), "is a table of this pipeline", "name it in the view as it is")
        yield from _marks(("inputs", name), it.sensitive, topic_shape(it))
        for column in it.key.keys() & it.value.keys():
            yield Complaint(("inputs", name, "value", column), f"column '{column}' stands in the key", "remove one")
    yield from _views(contract)
    yield from kafka.unread(contract)
    yield from keep.complaints(contract)


def _excess(contract: Contract) -> Iterator[Complaint]:
    """Yield what is too much in a contract as a whole."""
    tables = [*contract.topics, *contract.inputs, *contract.views]
    if len(tables) > bounds.TABLES:
        yield Complaint((), f"{len(tables):,} tables, more than {bounds.TABLES}", "split the pipeline")
    texts = [topic.valid_time or "" for topic in contract.topics.values()]
    for view in contract.views.values():
        texts += [view.where or "", *(view.join.keys if view.join else ())]
        texts += [
            text for field in (view.select, view.key, view.group_by, view.aggregate) for text in (field or {}).values()
        ]
    gates = [gate for name in (*contract.topics, *contract.views) for gate in contract.expectations(name)]
    texts += [text for gate in gates for text in gate.kwargs.values() if isinstance(text, str)]
    if sum(len(_TERM.findall(text)) for text in texts) > bounds.ALL_TERMS:
        yield Complaint(
            (), f"expressions and gates of more than {bounds.ALL_TERMS:,} terms together", "split the pipeline"
        )
    if sum(text.lower().count("timestamp") for text in texts) > bounds.ALL_MOMENTS:
        found = f"expressions that name timestamps more than {bounds.ALL_MOMENTS:,} times"
        yield Complaint((), found, "split the pipeline")
    if len(gates) > bounds.GATES:
        yield Complaint((), f"{len(gates):,} gates, more than {bounds.GATES}", "split the pipeline")


_TERM = re.compile(r"\w+|[^\w\s]")


def _topic(location: tuple[Any, ...], topic: Topic) -> Iterator[Complaint]:
    seen: dict[str, str] = {}
    for part, name in [("key", name) for name in topic.key] + [("value", name) for name in topic.value]:
        if name.lower() in seen:
            found = f"column '{name}' stands in the {seen[name.lower()]} already (case does not count)"
            yield Complaint((*location, part, name), found, "rename or remove one")
        seen[name.lower()] = part
    yield from formats.complaints(location, topic)
    for field in ("history_retention", "ttl"):
        if topic.read == "stream" and getattr(topic, field) is not None:
            yield Complaint((*location, field), f"{field} is for tables, this topic is a stream", "remove it")
    if topic.read == "table" and topic.since is not None:
        yield Complaint(
            (*location, "from"), "from is for streams, this topic is a table", "remove it: a table needs all"
        )
    yield from valid_time.complaints(location, topic)
    if topic.ttl is not None and not topic.ttl:
        yield Complaint((*location, "ttl"), "a version of no duration is none", "write for example 7 days")


def _pattern(name: str, contract: Contract) -> Iterator[Complaint]:
    topic, place = contract.topics[name], ("topics", name, "pattern")
    if topic.pattern is None:
        return
    if topic.topic is not None:
        yield Complaint(place, "topic and pattern in one entry", "remove one of the two")
    try:
        re.compile(topic.pattern)
    except (re.error, RecursionError, OverflowError) as error:
        yield Complaint(place, f"'{topic.pattern}' is no regular expression: {error}", "write for example orders-.*")
        return
    others = {contract.kafka_topic(it): it for it in contract.topics if contract.topics[it].pattern is None}
    try:
        kafka = first_match(topic.pattern, list(others))
    except ExcessError as error:
        yield Complaint(place, error.found, error.mend)
        return
    if kafka is not None:
        found = f"the pattern matches {kafka}, the topic of topics.{others[kafka]}: its records would be in two logs"
        yield Complaint(place, found, f"write a pattern that leaves it out, or remove topics.{others[kafka]}")


def _views(contract: Contract) -> Iterator[Complaint]:
    """Every view in an order in which its inputs come first; views that wait for each other are a cycle."""
    known = given(contract)
    todo = dict(contract.views)
    for name, view in todo.items():
        yield from malformed(name, view, [*contract.topics, *contract.inputs, *contract.views])
    while todo:
        ready = [name for name, view in todo.items() if all(i in known for i in view.inputs)]
        if not ready:
            told = (
                f"{' and '.join(todo)} are made of each other"
                if len(todo) > 1
                else f"{next(iter(todo))} is made of itself"
            )
            yield Complaint(
                ("views", next(iter(todo))), told, "break the cycle: a view is made of what is there before it"
            )
            return
        for name in ready:
            view = todo.pop(name)
            try:
                yield from complaints(name, view, known, contract)
                known[name] = view_shape(view, known)
                yield from kafka.complaints(name, known, contract)
                yield from gates.complaints(("views", name), view.expect, known[name])
                yield from gates.hold_complaints(("views", name), view.hold, view.expect, known[name])
                yield from _marks(("views", name), view.sensitive, known[name])
            except ExpressionError:
                return


def _marks(location: tuple[Any, ...], sensitive: bool | tuple[str, ...], shape: Shape) -> Iterator[Complaint]:
    for column in sensitive if isinstance(sensitive, tuple) else ():
        if column not in shape.columns:
            yield Complaint((*location, "sensitive"), f"no column '{column}' here", nearest(column, shape.columns))
