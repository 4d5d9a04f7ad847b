"""Columns of a draft, tried on the sample that it is made of: the contract's own decoder reads it. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pydantic import ValidationError

from hindcast.common.errors import RecordError
from hindcast.contract import Topic
from hindcast.contract.avro import parse_schema
from hindcast.contract.avro_compatibility import check_columns
from hindcast.formats import parsed_columns
from hindcast.formats.decoder import Decoder, part_type, plan_decoding
from hindcast.formats.record_part import PartName
from hindcast.ops.infer.columns import DraftColumn
from hindcast.ops.infer.part_columns import PartColumns, find_renamed
from hindcast.ops.infer.part_formats import PartForm
from hindcast.ops.infer.sample import SampledRecord, TopicSample

Part = tuple[PartName, PartForm, PartColumns]


def fit_columns(sample: TopicSample, read: str, parts: Sequence[Part]) -> list[SampledRecord]:
    """Make those columns of JSON text that some values do not fit, or bigint; return the records that fit no type.

    Records that are known to be malformed (`odd`) are not among them. RecordError for a schema of the registry that
    the columns do not fit: a run would stop at it.
    """
    topic = _build_topic(read, parts)
    if topic is None:  # the contract will say why
        return []
    _refuse_schemas(sample, topic, parts)
    known = {payload.record.place for _, form, _ in parts for payload in form.odd}
    known |= {place for _, _, columns in parts if columns.envelope for place in columns.envelope.odd}
    records = [record for record in sample.records if record.place not in known]
    while misfits := _find_misfits(topic, records):
        changed = [_fit_part(topic, part, misfits) for part in parts]
        if not any(changed):
            return misfits
        topic = _build_topic(read, parts) or topic
    return []


_MOST_TRIED, _MOST_BYTES = 100, 1 << 20
"""The most records that each column is tried on, and the most bytes of their values but for the first."""


def _choose_tried(misfits: Sequence[SampledRecord]) -> list[SampledRecord]:
    """Return some of the records, from all over them."""
    tried, size = list[SampledRecord](), 0
    for record in misfits[:: len(misfits) // _MOST_TRIED + 1]:
        size += len(record.key or b"") + len(record.value or b"")
        if tried and size > _MOST_BYTES:
            break
        tried.append(record)
    return tried


def _build_topic(read: str, parts: Sequence[Part]) -> Topic | None:
    """Return the topic that a contract would have; None if these columns are not valid."""
    settings: dict[str, Any] = {"read": read, "encoded": {}, "renamed": {}}
    for name, form, found in parts:
        settings[name] = {column.name: column.kind for column in found.columns}
        settings["encoded"] |= {column.name: column.encoding for column in found.columns if column.encoding}
        settings |= {} if form.form is None else {f"{name}_format": form.format}
        settings |= {} if found.envelope is None else {"envelope": "debezium"}
        settings["renamed"] |= {column: [field] for column, field in find_renamed(found, form).items()}
    if "envelope" in settings:
        settings["renamed"] = {}
    try:
        return Topic.model_validate(settings)
    except ValidationError:
        return None


def _refuse_schemas(sample: TopicSample, topic: Topic, parts: Sequence[Part]) -> None:
    for name, form, _ in parts:
        ids = {payload.schema for payload in (*form.payloads, *form.odd)}
        for id_, text in sorted(sample.writers.items()) if form.format == "avro" else ():
            columns = parsed_columns(topic, name)
            if id_ in ids and (wrong := [*check_columns(parse_schema(json.loads(text)), columns, topic.renamed)]):
                raise RecordError(
                    f"schema {id_} of the {name} does not fit the columns of the others: {wrong[0]}",
                    where=f"topic {sample.topic}",
                    fix="send what it writes to a topic of its own: a run stops at a schema that does not fit",
                )


def _find_misfits(topic: Topic, records: Sequence[SampledRecord], only: PartName | None = None) -> list[SampledRecord]:
    """Return the records that would be malformed, for what is not Avro; with `only` for that part alone."""
    how, none = plan_decoding(topic), pa.nulls(len(records), pa.binary())
    raw = {
        "key": none if only == "value" else pa.array([record.key for record in records], pa.binary()),
        "value": none if only == "key" else pa.array([record.value for record in records], pa.binary()),
    }
    avro = [part for part in (how.key, how.value) if part.format == "avro"]
    given: dict[str, pa.StructArray] = {part.name: pa.nulls(len(records), part_type(part)) for part in avro}
    problems = Decoder(how).parse(raw["key"], raw["value"], None, given).facts.problem
    return [record for record, is_bad in zip(records, problems.is_valid().to_pylist(), strict=True) if is_bad]


def _fit_part(topic: Topic, part: Part, records: Sequence[SampledRecord]) -> bool:
    """Change the type of each column of JSON that more of these records fit in another one; return whether any is."""
    name, form, found = part
    if form.form not in ("JSON object", "change event"):
        return False
    misfits = _find_misfits(topic, records, name)
    if not misfits:
        return False
    as_text = topic.model_copy(update={name: dict.fromkeys(getattr(topic, name), "string"), "encoded": {}})
    lost = {record.place for record in _find_misfits(as_text, misfits, name)}
    tried = _choose_tried([record for record in misfits if record.place not in lost])
    before = [*found.columns]
    for place, column in enumerate(before):
        if tried and column.kind != "string":
            found.columns[place] = _fit_column(column, topic, name, tried)
    return found.columns != before


def _fit_column(column: DraftColumn, topic: Topic, part: PartName, records: Sequence[SampledRecord]) -> DraftColumn:
    """Return a column with the type that most of the records fit, if they were read with this column alone."""
    own: str = getattr(topic, part)[column.name]
    encoded = {column.name: column.encoding} if column.encoding else {}

    def count_misfits(kind: str) -> int:
        update = {part: {column.name: kind}, "encoded": encoded if kind == own else {}}
        return len(_find_misfits(topic.model_copy(update=update), records, part))

    kinds = {own: count_misfits(own)}
    if kinds[own]:  # of dates and timestamps Debezium writes the numbers
        others = ["bigint"] if topic.envelope is not None and own in ("date", "timestamp") else []
        kinds |= {kind: count_misfits(kind) for kind in (*others, "string")}
    kind = min(kinds, key=lambda it: kinds[it])
    if kind == own:
        return column
    reason = f"{column.reason}; {kind}, as not all values fit {column.kind}"
    return replace(column, kind=kind, encoding="", reason=reason)
