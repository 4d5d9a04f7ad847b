"""The draft of a topic's entry in a contract: from a sample to columns, reading, notes and suggestions. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from math import ceil
from typing import Literal, NamedTuple

from hindcast.common.errors import RecordError, show_briefly
from hindcast.common.plurals import format_count
from hindcast.contract.types import format_duration
from hindcast.ops.infer import topic_facts
from hindcast.ops.infer.columns import DraftColumn, is_showable, quote_column, quote_text
from hindcast.ops.infer.fitting import fit_columns
from hindcast.ops.infer.part_columns import (
    ENVELOPES,
    PartColumns,
    add_value_columns,
    find_key_columns,
    find_renamed,
    read_value_rows,
)
from hindcast.ops.infer.part_formats import FormReader, PartForm, Payload, describe_forms, find_form
from hindcast.ops.infer.sample import SampledRecord, TopicSample


class Setting(NamedTuple):
    """A line of the contract with its reason; it is a comment unless it is in force."""

    text: str
    reason: str
    in_force: bool = True


@dataclass(frozen=True)
class TopicDraft:
    """A topic's entry: its name, what it reads, its columns, further lines, and notes above it."""

    name: str
    topic: str
    read: Literal["table", "stream"]
    read_reason: str
    key: Sequence[DraftColumn]
    value: Sequence[DraftColumn]
    settings: Sequence[Setting]
    notes: Sequence[str]

    @property
    def columns(self) -> Sequence[DraftColumn]:
        """The columns of key and value."""
        return (*self.key, *self.value)


def draft_topic(sample: TopicSample, name: str, now: datetime) -> TopicDraft:
    """Return the draft of a topic's entry; RecordError if its records have several formats, or no values."""
    reader = FormReader(sample.writers)
    key_form = find_form(sample.topic, "key", sample.records, reader)
    value_form = find_form(sample.topic, "value", sample.records, reader)
    if value_form.form is None:
        fix = "infer it again when records have values, or write the contract by hand (docs/contract.md)"
        found = f"all {format_count(len(sample.records), 'record')} read are tombstones: they have no value"
        raise RecordError(found, where=f"topic {sample.topic}", fix=fix)
    value = read_value_rows(sample, value_form)
    key = find_key_columns(sample, key_form, value)
    add_value_columns(sample, value_form, key, value)
    if not key.columns or not value.columns:
        empty = "value" if key.columns else "key"
        fix = "write the contract by hand (docs/contract.md)"
        raise RecordError(f"no {empty} has a field for a column", where=f"topic {sample.topic}", fix=fix)
    facts = topic_facts.count_keys(sample.records)
    read, reason = topic_facts.choose_reading(sample, facts, envelope=value.envelope is not None)
    misfits = fit_columns(sample, read, [("key", key_form, key), ("value", value_form, value)])
    lateness = topic_facts.measure_lateness(_list_times(sample, value, value_form))
    settings = [
        *_list_format_settings(key_form, value_form, key, value),
        *_list_time_settings(sample, value),
        *_list_retention_settings(read, lateness),
        *_list_malformed_settings(key_form, value_form, value, misfits),
    ]
    notes = [
        topic_facts.describe_sample(sample),
        *topic_facts.describe_timestamps(sample, now),
        *topic_facts.describe_lateness(lateness),
        *topic_facts.describe_partitioner(sample),
        *_describe_keys(read, facts),
        *_describe_headers(sample),
        *key.notes,
        *value.notes,
        *_describe_envelope(value),
    ]
    columns = _mark_names_of_persons(name, value.columns)
    return TopicDraft(name, sample.topic, read, reason, key.columns, columns, settings, [*dict.fromkeys(notes)])


def _mark_names_of_persons(entry: str, columns: Sequence[DraftColumn]) -> list[DraftColumn]:
    """Return the columns, those with names marked as sensitive if the topic's entry is about persons."""
    if not _PERSONS.search(entry):
        return [*columns]
    reason = f"a name, in a topic that is called {entry}"
    return [replace(it, sensitive=it.sensitive or reason) if it.name.lower() in _NAMES else it for it in columns]


_PERSONS = re.compile(
    r"(^|_)(customer|user|person|people|employee|patient|guest|member|contact|client|passenger|student|account)s?(_|$)"
)
_NAMES = ("name", "nickname", "display_name", "displayname", "login")


def _list_format_settings(
    key_form: PartForm, value_form: PartForm, key: PartColumns, value: PartColumns
) -> Iterator[Setting]:
    is_envelope = value_form.form in ENVELOPES
    if is_envelope:
        yield Setting("envelope: debezium", f"in {len(value_form.payloads):,} values: op, source, after")
    count = f"in {len(key_form.payloads):,} keys"
    default = "json" if is_envelope or len(key.columns) > 1 else "string"
    if key_form.form is not None and key_form.format != default:
        yield Setting(f"key_format: {key_form.format}", count)
    if value_form.format != "json":
        yield Setting(f"value_format: {value_form.format}", f"in {len(value_form.payloads):,} values")
    renamed = {} if is_envelope else {**find_renamed(key, key_form), **find_renamed(value, value_form)}
    if renamed:
        pairs = ", ".join(f"{quote_text(name)}: [{quote_text(field)}]" for name, field in renamed.items())
        yield Setting(f"renamed: {{{pairs}}}", "fields whose name no column can have, or another one has")
    encoded = {column.name: column.encoding for column in value.columns if column.encoding}
    if encoded:
        yield Setting(
            f"encoded: {{{', '.join(f'{quote_text(n)}: {e}' for n, e in encoded.items())}}}", "how they are written"
        )
    if is_envelope and value_form.form == "change event":
        yield from _suggest_encodings(value)


def _suggest_encodings(value: PartColumns) -> Iterator[Setting]:
    """Yield what to write for numbers and texts that may be encoded, where no schema says so: it is never guessed."""
    if value.envelope is None or value.envelope.types:
        return
    for column in value.columns:
        if column.kind == "bigint" and _TIME.search(column.name):
            reason = f"if the database has a timestamp in {column.name}, with type timestamp"
            yield Setting(f"encoded: {{{quote_text(column.name)}: MicroTimestamp}}", reason, in_force=False)
        elif column.kind == "string" and _MONEY.search(column.name):
            reason = f"if the database has a decimal in {column.name}, with its type"
            yield Setting(f"encoded: {{{quote_text(column.name)}: Decimal}}", reason, in_force=False)


_TIME = re.compile(r"time|date|_at$|At$|^at$|^ts|_ts$|Ts$|when|created|updated|since", re.I)
_EPOCH = re.compile(r"time|_at$|At$|^at$|^ts|_ts$|Ts$|created|updated|occurred|epoch|millis", re.I)
_MONEY = re.compile(r"price|amount|total|cost|fee|balance|tax", re.I)
_UNITS = {"timestamp_seconds": 1, "timestamp_millis": 1_000, "timestamp_micros": 1_000_000}
_FIRST_SECOND, _LAST_SECOND = 631_152_000, 4_102_444_800


def _list_time_settings(sample: TopicSample, value: PartColumns) -> Iterator[Setting]:
    """Yield `valid_time` for columns that may say when a record is true: in force only if Kafka has no timestamps."""
    if value.envelope is not None:
        return
    has_none = all(record.timestamp < 0 for record in sample.records)
    for number, (text, column) in enumerate(_find_time_expressions(value.columns)):
        reason = f"if {column} says when a record is true; without it Kafka's timestamp does"
        if has_none:
            reason = f"no record has a timestamp of its own, and {column} is a time"
        yield Setting(f"valid_time: {quote_text(text)}", reason, in_force=has_none and not number)
        if number == _MOST_TIMES - 1:
            return


_MOST_TIMES = 3


def _find_time_expressions(columns: Sequence[DraftColumn]) -> Iterator[tuple[str, str]]:
    for column in (it for it in columns if not it.sensitive and it.never_null):
        if column.kind == "timestamp":
            yield quote_column(column.name), column.name
        elif column.kind in ("int", "bigint") and column.least is not None and _EPOCH.search(column.name):
            for function, per_second in _UNITS.items():
                first, last = (Decimal(second * per_second) for second in (_FIRST_SECOND, _LAST_SECOND))
                if column.most is not None and first <= column.least and column.most <= last:
                    yield f"{function}({quote_column(column.name)})", column.name


def _list_retention_settings(read: str, lateness: topic_facts.Lateness) -> Iterator[Setting]:
    if read == "table" and lateness.records:
        reason = "twice the largest lateness seen, rounded up; older versions would be refused (expired)"
        yield Setting(f"history_retention: {format_duration(lateness.retention)}", reason, in_force=False)


def _list_malformed_settings(
    key_form: PartForm, value_form: PartForm, value: PartColumns, misfits: Sequence[SampledRecord]
) -> Iterator[Setting]:
    odd = [*key_form.odd, *value_form.odd]
    others = (value.envelope.others.total() + value.envelope.unavailable) if value.envelope else 0
    total = len(value_form.payloads) + len(value_form.odd)
    if not odd and not others and not misfits:
        return
    share = min(max(ceil(200 * (len(odd) + others + len(misfits)) / max(total, 1)), 1), 100)
    parts = [describe_forms(odd)] if odd else []
    parts += [f"{others:,} change events that are no change of a row, or lack a value"] if others else []
    if misfits:
        count = format_count(len(misfits), "record")
        parts.append(f"{count} with what no type of a column takes (the first at {misfits[0].place})")
    yield Setting(f"max_malformed: {share}%", f"{'; '.join(parts)} would be malformed; remove the line to stop at one")


def _list_times(sample: TopicSample, value: PartColumns, form: PartForm) -> list[tuple[int, int]]:
    """Return the partition and time of each record in the order of offsets: an envelope's own, else Kafka's."""
    if value.envelope is not None:
        payloads: Sequence[Payload] = form.payloads
        return [(it.record.partition, at) for it, at in zip(payloads, value.envelope.times, strict=True)]
    return [(record.partition, record.timestamp) for record in sample.records]


def _describe_keys(read: str, facts: topic_facts.KeyFacts) -> Iterator[str]:
    if facts.null and read == "table":
        yield f"{format_count(facts.null, 'record')} without a key would be refused (null_key)"
    if facts.scattered:
        keys = format_count(facts.scattered, "key")
        yield f"{keys} in several partitions: the order of such a key's records is that of their timestamps alone"


def _describe_headers(sample: TopicSample) -> Iterator[str]:
    """Yield the names of headers, and how many are not shown: names can be secrets as values can."""
    counts = Counter(name for record in sample.records for name in {*(record.headers or ())})
    shown = Counter({name: n for name, n in counts.items() if is_showable(name)})
    listed = shown.most_common(_MOST_HEADERS)
    parts = [", ".join(f"{show_briefly(name, 60)} in {n:,}" for name, n in listed)] if listed else []
    more = "more " if listed else ""
    if rarer := len(shown) - len(listed):
        parts.append(f"{format_count(rarer, 'more name')} {'is' if rarer == 1 else 'are'} in fewer records")
    if hidden := len(counts) - len(shown):
        names = format_count(hidden, f"{more}name")
        parts.append(f"{names} left out: not printable, too long, or like secrets or personal data")
    if parts:
        yield f"headers{', which the columns in `headers:` can read' if listed else ''}: {'; '.join(parts)}"
    if unreadable := sum(1 for record in sample.records if record.headers is None):
        has = "has" if unreadable == 1 else "have"
        yield f"{format_count(unreadable, 'record')} {has} headers whose names are not UTF-8 text; they were not read"


_MOST_HEADERS = 10


def _describe_envelope(value: PartColumns) -> Iterator[str]:
    if value.envelope is None:
        return
    yield f"{format_count(len(value.envelope.rows), 'row')}, {format_count(value.envelope.deletes, 'delete')}"
    for op, n in value.envelope.others.items():
        yield f"op {op} in {n:,}: no change of a row, malformed"
    if value.envelope.unavailable:
        rows = format_count(value.envelope.unavailable, "row")
        yield f"{rows} without a value that did not change (TOAST): malformed; set REPLICA IDENTITY FULL"
