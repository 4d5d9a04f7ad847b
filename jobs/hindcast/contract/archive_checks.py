"""Checks of the archives of topics. Pure, without Spark."""

from __future__ import annotations

from collections.abc import Iterator

from hindcast.contract.archive import Archive
from hindcast.contract.formats import part_format
from hindcast.contract.model import Contract
from hindcast.contract.shapes import FieldPath
from hindcast.contract.topic import Topic
from hindcast.contract.view_checks import Complaint

_OF_VALUES = ("offset", "timestamp", "key_in_value", "keys", "headers")
"""The fields of an archive that are for rows which are values."""


def check_archives(contract: Contract) -> Iterator[Complaint]:
    """Yield every complaint about `archive` of topics."""
    known: dict[str, tuple[str, Archive | None]] = {}
    for name, topic in contract.topics.items():
        location = ("topics", name, "archive")
        other, archive = known.setdefault(contract.kafka_topic(name), (name, topic.archive))
        if archive != topic.archive:
            found = f"topics.{name} and topics.{other} read one topic, with different archives"
            yield Complaint(location, found, "give both the same archive")
        if topic.archive is not None:
            yield from _check_archive(location, topic, topic.archive)


def _check_archive(location: FieldPath, topic: Topic, archive: Archive) -> Iterator[Complaint]:
    if topic.pattern is not None:
        yield Complaint(location, "an archive is of one topic, but this entry has a pattern", "write topic: instead")
    if archive.rows == "record":
        for field in _OF_VALUES:
            if getattr(archive, field):
                fix = "remove it, or write rows: value if each row is a value"
                yield Complaint((*location, field), f"{field} is for rows that are values", fix)
        return
    if (found := part_format(topic, "value")) not in ("json", "string"):
        fix = "archive whole records (rows: record), the value as bytes"
        yield Complaint((*location, "rows"), f"rows that are values are JSON or text, but value_format is {found}", fix)
    if archive.key_in_value and archive.keys is not None:
        yield Complaint((*location, "keys"), "the keys are in the values and in files beside", "remove one of the two")
    if not archive.key_in_value and archive.keys is None and topic.read == "table":
        fix = "write key_in_value: true if the value has the key's columns, or keys: json if files beside have the keys"
        yield Complaint((*location, "rows"), "rows that are values have no key, which a table needs", fix)
    if archive.key_in_value and (found := part_format(topic, "key")) not in ("json", "string"):
        fix = "archive whole records (rows: record), the key as bytes"
        yield Complaint(
            (*location, "key_in_value"), f"a key of the value's fields is JSON or text, but key_format is {found}", fix
        )
