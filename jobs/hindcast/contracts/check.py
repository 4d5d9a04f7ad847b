"""What a contract's parts mean to each other: names, keys, expressions, gates. Pure, without Spark."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from hindcast.contracts import envelope, formats, gates, kafka, keep, valid_time
from hindcast.contracts.expressions import ExpressionError
from hindcast.contracts.model import Contract
from hindcast.contracts.shapes import Shape, given, topic_shape, view_shape
from hindcast.contracts.topic import Topic
from hindcast.contracts.views import Complaint, complaints, malformed
from hindcast.errors import nearest


def check(contract: Contract) -> Iterator[Complaint]:
    """Every complaint about a contract whose fields are right one by one."""
    if contract.schedule == "inputs" and not contract.inputs:
        yield Complaint(("schedule",), "there are no inputs that could start a run", "name the tables under inputs:")
    elif contract.schedule not in (None, "inputs") and not _is_cron(contract.schedule or ""):
        yield Complaint(
            ("schedule",),
            f"'{contract.schedule}' is not a cron expression",
            "write five fields (0 2 * * *), or @hourly, @daily, @weekly, @monthly, @yearly, or inputs",
        )
    for name, topic in contract.topics.items():
        yield from _topic(("topics", name), topic)
        yield from _pattern(name, contract)
        yield from envelope.complaints(("topics", name), topic)
        if name in contract.views:
            yield Complaint(("views", name), f"'{name}' is a topic too", "give the view another name")
        if name in RESERVED:
            yield Complaint(("topics", name), f"'{name}' is the name of one of our own tables", "choose another name")
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
    for name in contract.views:
        if name in RESERVED:
            yield Complaint(("views", name), f"'{name}' is the name of one of our own tables", "choose another name")
    yield from _views(contract)
    yield from kafka.unread(contract)
    yield from keep.complaints(contract)


RESERVED = (
    *("runs", "quarantine", "logs", "fates", "schemas", "emitted", "kept", "gates", "failing"),
    *("trimmed", "base", "rollover"),
)
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
    except re.error as error:
        yield Complaint(place, f"'{topic.pattern}' is no regular expression: {error}", "write for example orders-.*")
        return
    for other in (it for it in contract.topics if contract.topics[it].pattern is None):
        if topic.matches(kafka := contract.kafka_topic(other)):
            found = f"the pattern matches {kafka}, the topic of topics.{other}: its records would be in two logs"
            yield Complaint(place, found, f"write a pattern that leaves it out, or remove topics.{other}")


def _views(contract: Contract) -> Iterator[Complaint]:
    """Every view in an order in which its inputs come first; views that wait for each other are a cycle."""
    known = given(contract)
    todo = dict(contract.views)
    while todo:
        for name, view in todo.items():
            yield from malformed(name, view, [*contract.topics, *contract.inputs, *contract.views])
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
