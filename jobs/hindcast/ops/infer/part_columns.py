"""The columns of a topic's keys and of its values, by the form that they have. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from hindcast.common.errors import RecordError, show_briefly
from hindcast.common.plurals import format_count
from hindcast.ops.infer import avro_columns
from hindcast.ops.infer.avro_columns import AvroColumn
from hindcast.ops.infer.columns import DraftColumn, Rows, choose_column_name, collect_fields, draft_column, is_showable
from hindcast.ops.infer.envelope_rows import EnvelopeRows, collect_rows, read_connect_fields, unwrap
from hindcast.ops.infer.field_types import TypeChoice, find_sensitive_reason
from hindcast.ops.infer.fields import FieldStats
from hindcast.ops.infer.json_text import Parsed, format_parsed
from hindcast.ops.infer.part_formats import PartForm, Payload
from hindcast.ops.infer.sample import TopicSample

ENVELOPES = ("change event", "Avro change event")

_Place = tuple[int, int]


@dataclass
class PartColumns:
    """The columns of a key or value, with notes for who reads the contract.

    `rows`: the payloads by place, if they are objects; `same`: the field of the value that a key without fields has.
    """

    columns: list[DraftColumn] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    rows: dict[_Place, Mapping[str, Parsed]] = field(default_factory=dict)
    envelope: EnvelopeRows | None = None
    same: str | None = None


def read_value_rows(sample: TopicSample, form: PartForm) -> PartColumns:
    """Return the objects of the values by place, without columns yet; RecordError for change events without a row."""
    found = PartColumns(notes=[f"value: {note}" for note in form.notes])
    if form.form in ENVELOPES:
        found.envelope = collect_rows((payload.parsed, payload.record.place) for payload in form.payloads)
        if not found.envelope.rows:
            fix = "infer it again when rows were inserted, or write the contract by hand (docs/topics/debezium.md)"
            where = f"topic {sample.topic}"
            raise RecordError(
                "the change events have no row: all are deletes, or of another kind", where=where, fix=fix
            )
        return found
    found.rows = {_place(payload): its for payload in form.payloads if isinstance(its := payload.parsed, Mapping)}
    return found


def find_key_columns(sample: TopicSample, form: PartForm, value: PartColumns) -> PartColumns:
    """Return the columns of the keys; RecordError for change events whose keys are no objects."""
    found = PartColumns(notes=[f"key: {note}" for note in form.notes])
    if form.form is None:
        name = choose_column_name("key", _list_fields(value))
        found.columns = [DraftColumn(name, "string", f"null in all of {form.nulls:,} records", name)]
        return found
    if form.nulls:
        found.notes.append(f"key: null in {form.nulls:,} of {form.nulls + len(form.payloads):,} records")
    if form.form in ("JSON object", "Avro", *ENVELOPES) and all(isinstance(it.parsed, Mapping) for it in form.payloads):
        found.rows = {_place(it): row for it in form.payloads if isinstance(row := unwrap(it.parsed), Mapping)}
        if value.envelope is not None and not found.rows:
            raise _plain_keys_error(sample, form)
        choices = _find_choices(sample, form, "", {it.schema for it in form.payloads})
        if value.envelope is not None and not choices:
            choices = _find_connect_choices(form.payloads)
        found.columns = list(_draft_key_columns(collect_fields(_with_places(form, found.rows)), choices, value))
        return found
    if value.envelope is not None:
        raise _plain_keys_error(sample, form)
    found.same = _find_same_field(form, value.rows)
    found.columns = [_draft_single_column(sample, form, "key", found.same, _list_fields(value))]
    return found


def _plain_keys_error(sample: TopicSample, form: PartForm) -> RecordError:
    written = {"bytes": form.kind or "bytes", "Avro": "Avro that is no record", "JSON object": "single values"}.get(
        form.form or "", "text"
    )
    return RecordError(
        f"the keys of the change events are {written}, not objects as Debezium writes them",
        where=f"topic {sample.topic}",
        fix=(
            "let the connector write objects: remove ExtractField$Key from its transforms, and set key.converter as "
            "value.converter; or write a contract that reads the topic without envelope (docs/topics/debezium.md)"
        ),
    )


def add_value_columns(sample: TopicSample, form: PartForm, key: PartColumns, found: PartColumns) -> None:
    """Add the columns of the values, without those of the key, and their notes to `found`."""
    if found.envelope is not None:
        _add_envelope_columns(sample, form, key, found)
    elif found.rows:
        rows = collect_fields(_with_places(form, found.rows))
        choices = _find_choices(sample, form, "", {payload.schema for payload in form.payloads})
        _add_row_columns(rows, choices, _find_repeats(key, found), key, found)
    else:
        name = choose_column_name("value", [column.name for column in key.columns])
        found.columns = [_draft_single_column(sample, form, name, None, [column.name for column in key.columns])]


def find_renamed(part: PartColumns, form: PartForm) -> dict[str, str]:
    """Return the columns that are read from a field of another name, if the form has fields."""
    if form.form not in ("JSON object", "Avro") or not part.rows:
        return {}
    return {column.name: column.field for column in part.columns if column.name != column.field}


def _add_row_columns(
    rows: Rows, choices: Mapping[str, TypeChoice], repeats: frozenset[str], key: PartColumns, found: PartColumns
) -> None:
    left_out = {*rows.rare}
    if left_out:
        found.notes.append(f"{format_count(len(left_out), 'field')} left out: in too few of the records")
    taken = [column.name for column in key.columns]
    for name, stats in rows.fields.items():
        if name in repeats:
            found.notes.append(f"the field {_show(name)} of the value is left out: it is the key's")
        elif name not in left_out and _is_readable(choices.get(name), name, found.notes):
            column = choose_column_name(name, taken, rows.fields)
            taken.append(column)
            found.columns.append(draft_column(column, name, stats, rows.total, choices.get(name)))


def _add_envelope_columns(sample: TopicSample, form: PartForm, key: PartColumns, found: PartColumns) -> None:
    envelope = found.envelope or EnvelopeRows()
    rows = collect_fields(envelope.rows)
    choices, encodings = _find_named_types(envelope.types), dict[str, str]()
    if form.form == "Avro change event":
        typed = _find_avro_columns(sample, form, "after")
        choices = {name: TypeChoice(column.kind, column.reason) for name, column in typed.items()}
        encodings = {name: column.encoding for name, column in typed.items() if column.encoding}
    keys = {column.field for column in key.columns}
    for name, stats in rows.fields.items():
        if name in keys:
            continue
        if not _is_readable(choices.get(name), name, found.notes):
            continue
        if choose_column_name(name, [column.name for column in (*key.columns, *found.columns)]) != name:
            found.notes.append(f"the field {_show(name)} is left out: a column of an envelope cannot be renamed")
        else:
            column = draft_column(name, name, stats, rows.total, choices.get(name), envelope=True)
            encoding = encodings.get(name) or _guess_encoding(column, stats, typed=name in choices)
            if "<" not in column.kind or not _ENCODED.search(column.kind):
                found.columns.append(replace(column, encoding=encoding))
            elif form.form == "change event":
                reason = f"{column.reason}, as their JSON text: decimals and times within a value are encoded"
                found.columns.append(replace(column, kind="string", reason=reason))
            else:
                found.notes.append(f"the field {_show(name)} is left out: decimals and times within it are encoded")


_ENCODED = re.compile(r"decimal|date|timestamp", re.IGNORECASE)
"""What the type of a nested column of an envelope must not have in it, not even as a name (contract/envelope.py)."""


def _guess_encoding(column: DraftColumn, stats: FieldStats, *, typed: bool) -> str:
    """Return the encoding that numbers in a decimal column need, so that "1000" is not taken for base64."""
    return "Number" if column.kind.startswith("decimal") and not typed and stats.count else ""


def _find_named_types(types: Mapping[str, str]) -> dict[str, TypeChoice]:
    """Return the types of Connect's schemas as choices. The records themselves name the encodings."""
    choices = {}
    for name, kind in types.items():
        plain, _, encoding = kind.partition(" ") if "<" not in kind else (kind, "", "")
        choices[name] = TypeChoice(plain, f"by the records' schema{f', {encoding}' if encoding else ''}")
    return choices


def _find_connect_choices(payloads: Sequence[Payload]) -> dict[str, TypeChoice]:
    """Return the types of a key by its own schema, if it has one; what is encoded stays as it is written."""
    for payload in payloads[:1]:
        if isinstance(payload.parsed, Mapping) and unwrap(payload.parsed) is not payload.parsed:
            types = read_connect_fields(payload.parsed["schema"])
            return {n: TypeChoice(_ENCODED_KEYS.get(k.partition(" ")[2], k), "by its schema") for n, k in types.items()}
    return {}


_ENCODED_KEYS = {
    "Decimal": "string",
    "VariableScaleDecimal": "string",
    "Date": "int",
    **dict.fromkeys(("Timestamp", "MicroTimestamp", "NanoTimestamp"), "bigint"),
}


def _draft_key_columns(rows: Rows, choices: Mapping[str, TypeChoice], value: PartColumns) -> Iterator[DraftColumn]:
    taken: list[str] = []
    for name, stats in rows.fields.items():
        if not _is_readable(choices.get(name), name, value.notes):
            continue
        column_name = choose_column_name(name, taken, rows.fields)
        column = draft_column(column_name, name, stats, rows.total, choices.get(name))
        if value.envelope is not None and column.kind.startswith(("decimal", "date", "timestamp")):
            column = replace(column, kind="string")
        taken.append(column.name)
        yield column


def _draft_single_column(
    sample: TopicSample, form: PartForm, name: str, same: str | None, others: Sequence[str]
) -> DraftColumn:
    """Return the column of keys or values that are not objects; `same`: the field of the value that the key repeats."""
    stats = FieldStats(keeps_values=True)
    for payload in form.payloads:
        stats.observe(payload.parsed, payload.record.place)
    choice = TypeChoice(form.kind, "bytes as they are" if form.kind == "binary" else f"{form.kind}, by its bytes")
    if form.form == "Avro":
        found = _find_avro_columns(sample, form, "").get("", AvroColumn("string", ""))
        if not found.kind:
            fix = "write the contract by hand (docs/topics/formats.md), or send what has another type to another topic"
            raise RecordError(f"its schemas disagree: {found.reason}", where=f"topic {sample.topic}", fix=fix)
        choice = TypeChoice(found.kind, found.reason)
    elif form.form == "text":
        whole = stats.texts.whole == stats.texts.count
        reason = "text, always of whole numbers (bigint fits too)" if whole else "text"
        choice = TypeChoice("string", reason)
    column = draft_column(same or choose_column_name(name, others), name, stats, len(form.payloads), choice)
    sensitive = (find_sensitive_reason(stats, same) if same else None) or column.sensitive
    return replace(column, field=column.name, sensitive=sensitive)


def _find_same_field(form: PartForm, rows: Mapping[_Place, Mapping[str, Parsed]]) -> str | None:
    """Return the field of the values that always has the key, as text; None if there is none or too few keys."""
    same: list[str] | None = None
    if len({format_parsed(payload.parsed) for payload in form.payloads}) < _LEAST_KEYS:
        return None
    for payload in form.payloads:
        row, text = rows.get(_place(payload)), format_parsed(payload.parsed)
        if row is not None:
            fields = row if same is None else [name for name in same if name in row]
            same = [name for name in fields if format_parsed(row[name]) == text]
    others = {name for row in rows.values() for name in row}
    valid = [
        name for name in same or () if choose_column_name(name, ()) == name and is_showable(name) and others - {name}
    ]
    return valid[0] if valid else None


_LEAST_KEYS = 3
"""With fewer different keys it may be by chance that a field has them."""


def _find_repeats(key: PartColumns, value: PartColumns) -> frozenset[str]:
    """Return the fields of the values that always have what the key has under their name."""
    names = {column.field for column in key.columns}
    if not key.rows:
        return frozenset((key.same,) if key.same is not None else ())
    pairs = [(key.rows[place], row) for place, row in value.rows.items() if place in key.rows]
    repeats = frozenset(
        name
        for name in names
        if pairs and all(name in theirs and name in own and theirs[name] == own[name] for own, theirs in pairs)
    )
    return repeats if {name for row in value.rows.values() for name in row} - repeats else frozenset()


def _find_choices(sample: TopicSample, form: PartForm, field: str, ids: set[int | None]) -> dict[str, TypeChoice]:
    if form.form != "Avro" or not ids:
        return {}
    typed = _find_avro_columns(sample, form, field)
    return {name: TypeChoice(column.kind, column.reason) for name, column in typed.items()}


def _find_avro_columns(sample: TopicSample, form: PartForm, field: str) -> dict[str, AvroColumn]:
    ids = {payload.schema for payload in form.payloads}
    writers = {id_: text for id_, text in sample.writers.items() if id_ in ids}
    return avro_columns.find_columns(sample.topic, writers, field)


def _is_readable(choice: TypeChoice | None, name: str, notes: list[str]) -> bool:
    """Return whether a column can have a field; if not, because of its name or its schemas, add a note."""
    if not is_showable(name):
        notes.append("a field is left out: its name is not printable, too long, or looks like personal data")
        return False
    if choice is None or choice.kind:
        return True
    notes.append(f"the field {_show(name)} is left out: {choice.reason}")
    return False


def _list_fields(value: PartColumns) -> list[str]:
    return list({name: None for row in value.rows.values() for name in row})


def _with_places(
    form: PartForm, rows: Mapping[_Place, Mapping[str, Parsed]]
) -> Iterator[tuple[Mapping[str, Parsed], str]]:
    for payload in form.payloads:
        if (row := rows.get(_place(payload))) is not None:
            yield row, payload.record.place


def _place(payload: Payload) -> _Place:
    return payload.record.partition, payload.record.offset


def _show(name: str | None) -> str:
    return show_briefly(name or "", 60)
