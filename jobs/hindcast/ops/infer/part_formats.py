"""How the keys or the values of a topic are written: the format that all of them have, or a refusal. Pure.

| form | a payload is | the contract's format |
| --- | --- | --- |
| change event | a JSON object, or Avro, with Debezium's envelope | json or avro, with `envelope: debezium` |
| JSON object | an object | json |
| Avro | Avro after the id of a schema in the registry | avro |
| text | any other text in UTF-8: also numbers, and JSON lists | string |
| bytes | anything else | primitive if all have the same number of bytes, else string with a binary column |
"""

from __future__ import annotations

import json
import struct
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from hindcast.common.errors import RecordError
from hindcast.ops.infer.avro_bytes import AvroDecoder
from hindcast.ops.infer.envelope_rows import is_change_event
from hindcast.ops.infer.json_text import Number, Parsed, parse_json
from hindcast.ops.infer.sample import HEADER_SIZE, SampledRecord

Form = Literal["change event", "JSON object", "Avro", "Avro change event", "text", "bytes"]

MAX_ODD = 0.05
"""The largest share of records in another form that a contract lets pass (`max_malformed`)."""


class Payload(NamedTuple):
    """A key or a value that is not null, with the form that it has and what it says; `schema`: the id in Avro."""

    record: SampledRecord
    form: Form
    parsed: Parsed
    schema: int | None = None


@dataclass(frozen=True)
class PartForm:
    """The form of a topic's keys or values: the payloads that have it, and those that do not.

    `kind`: the column type of a primitive, else empty; `notes`: what a reader of the contract should know.
    """

    form: Form | None
    payloads: Sequence[Payload]
    odd: Sequence[Payload]
    nulls: int
    kind: str = ""
    notes: tuple[str, ...] = ()

    @property
    def format(self) -> str:
        """The format, as the contract names it."""
        if self.kind and self.kind != "binary":
            return "primitive"
        if self.form in ("Avro", "Avro change event"):
            return "avro"
        return "json" if self.form in ("JSON object", "change event") else "string"


class FormReader:
    """A reader of payloads, with the schemas of the registry by id."""

    def __init__(self, writers: Mapping[int, str]) -> None:
        self._decoders: dict[int, AvroDecoder] = {}
        for id_, schema in writers.items():
            try:
                self._decoders[id_] = AvroDecoder(json.loads(schema))
            except (ValueError, LookupError, TypeError, RecursionError):
                fix = "register it again, or leave the topic out"
                raise RecordError(f"schema {id_} of the registry is not an Avro schema", fix=fix) from None

    def read_payload(self, record: SampledRecord, raw: bytes) -> Payload:
        """Return a payload with its form."""
        if raw[:1] == b"\0" and len(raw) >= HEADER_SIZE and (id_ := int.from_bytes(raw[1:5])) in self._decoders:
            try:
                parsed = self._decoders[id_].decode(raw[HEADER_SIZE:])
            except ValueError:
                return Payload(record, "bytes", raw)
            return Payload(record, "Avro change event" if is_change_event(parsed) else "Avro", parsed, id_)
        try:
            text = raw.decode()
        except UnicodeDecodeError:
            return Payload(record, "bytes", raw)
        if _CONTROLS.intersection(text):
            return Payload(record, "bytes", raw)
        if text.lstrip().startswith("{"):
            try:
                parsed = parse_json(raw)
            except ValueError:
                return Payload(record, "text", text)
            return Payload(record, "change event" if is_change_event(parsed) else "JSON object", parsed)
        return Payload(record, "text", text)


_CONTROLS = frozenset(map(chr, range(32))) - set("\t\n\r")


def find_form(
    topic: str, part: Literal["key", "value"], records: Iterable[SampledRecord], reader: FormReader
) -> PartForm:
    """Return the form of the keys or the values; RecordError if they have several, with an example of each."""
    payloads, nulls = [], 0
    for record in records:
        raw = record.key if part == "key" else record.value
        if raw is None:
            nulls += 1
        else:
            payloads.append(reader.read_payload(record, raw))
    counts = Counter(payload.form for payload in payloads)
    if not counts:
        return PartForm(None, (), (), nulls)
    form, count = counts.most_common(1)[0]
    sizes = {len(_raw_bytes(payload, part)) for payload in payloads}
    if counts["bytes"] and len(counts) == len(counts.keys() & {"bytes", "text"}):
        return _find_bytes_form(payloads, part, sizes, nulls)
    if form == "text" and len(payloads) - count <= MAX_ODD * len(payloads) and not counts["bytes"]:
        note = f"{len(payloads) - count:,} are JSON objects, kept as their text" if count < len(payloads) else ""
        return PartForm(form, _as_texts(payloads, part), (), nulls, notes=(note,) if note else ())
    odd = [payload for payload in payloads if payload.form != form]
    if len(odd) > MAX_ODD * len(payloads):
        raise _mixed_error(topic, part, payloads, counts)
    return PartForm(form, [payload for payload in payloads if payload.form == form], odd, nulls)


def describe_forms(payloads: Sequence[Payload]) -> str:
    """Return how many payloads have which form, with the place of the first of each, in words."""
    firsts = {payload.form: payload.record.place for payload in reversed(payloads)}
    counts = Counter(payload.form for payload in payloads)
    return ", ".join(f"{n:,} {_NAMES[form]} (the first at {firsts[form]})" for form, n in counts.most_common())


_NAMES = {
    "change event": "change events of Debezium in JSON",
    "JSON object": "JSON objects",
    "Avro": "Avro records",
    "Avro change event": "change events of Debezium in Avro",
    "text": "texts that are not JSON objects",
    "bytes": "byte strings that are not text",
}


def _mixed_error(topic: str, part: str, payloads: Sequence[Payload], counts: Counter[Form]) -> RecordError:
    found = f"the {part}s have different formats: {describe_forms(payloads)}"
    if counts["bytes"] and any(raw[:1] == b"\0" for raw in (_raw_bytes(payload, part) for payload in payloads)):
        fix = "set HINDCAST_SCHEMA_REGISTRY if the bytes are Avro; else "
    else:
        fix = ""
    fix += (
        "send each format to a topic of its own; or write a contract by hand for the format that you need, "
        "with max_malformed for the others (docs/topics/poison.md)"
    )
    return RecordError(found, where=f"topic {topic}", fix=fix)


def _raw_bytes(payload: Payload, part: str) -> bytes:
    return (payload.record.key if part == "key" else payload.record.value) or b""


def _as_texts(payloads: Sequence[Payload], part: str) -> list[Payload]:
    return [it._replace(form="text", parsed=_raw_bytes(it, part).decode()) for it in payloads]


def _find_bytes_form(payloads: Sequence[Payload], part: str, sizes: set[int], nulls: int) -> PartForm:
    """Return the form of payloads of which some are bytes, and all others text."""
    raws = [_raw_bytes(payload, part) for payload in payloads]
    if len(sizes) == 1 and (kind := _find_primitive(raws)):
        values = [
            payload._replace(form="bytes", parsed=_read_primitive(raw, kind))
            for payload, raw in zip(payloads, raws, strict=True)
        ]
        note = f"all have {len(raws[0])} bytes, as Kafka's serializer of {kind} writes them; a guess"
        return PartForm("bytes", values, (), nulls, kind, (note,))
    texts = [payload for payload in payloads if payload.form == "text"]
    if len(payloads) - len(texts) <= MAX_ODD * len(payloads):
        return PartForm("text", texts, [it for it in payloads if it.form != "text"], nulls)
    whole = [payload._replace(form="bytes", parsed=raw) for payload, raw in zip(payloads, raws, strict=True)]
    return PartForm("bytes", whole, (), nulls, "binary", ("neither text nor JSON, Avro of a registry, or numbers",))


_FLOATS = {"float": ">f", "double": ">d"}
_WIDTHS = {2: "smallint", 4: "int", 8: "bigint"}


def _find_primitive(raws: Sequence[bytes]) -> str:
    """Return the type that Kafka's own serializers write in so many bytes; empty if there is none."""
    width = len(raws[0])
    if width == 1:
        return "boolean" if {*raws} <= {b"\0", b"\1"} else ""
    for kind, code in _FLOATS.items():
        if struct.calcsize(code) == width and all(_is_usual(struct.unpack(code, raw)[0]) for raw in raws):
            return kind
    return _WIDTHS.get(width, "")


def _is_usual(number: float) -> bool:
    """Return whether a number, read as floating-point, is of a size that people write; whole numbers never are."""
    return 1e-6 < abs(number) < 1e12


def _read_primitive(raw: bytes, kind: str) -> Parsed:
    if kind == "boolean":
        return raw == b"\1"
    number = struct.unpack(_FLOATS[kind], raw)[0] if kind in _FLOATS else int.from_bytes(raw, signed=True)
    return Number(number)
