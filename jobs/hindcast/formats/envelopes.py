"""Change events of Debezium: what a record's envelope says of a row. Pure: columns in, columns out.

    {"op": "u", "before": ..., "after": {"id": 1, "price": 8}, "source": {"ts_us": 1767225600000000, "lsn": 7}, ...}

| op | the record is |
| --- | --- |
| c, u, r | a version: the row `after` an insert, an update, or as a snapshot has read it |
| d | a tombstone: the row is gone |
| t, m, any other | malformed: a truncated table, a message: no change of one row |
| (no value) | no change: Debezium's own tombstone, which follows a delete so that compaction can forget the key |

A format reads the columns that are `asked` of it; `changes` makes of them the value that the contract describes. With
`schemas.enable` the envelope is the `payload` beside its `schema`; both forms are read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import reduce
from operator import or_
from typing import Any, NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from hindcast.contracts import Topic
from hindcast.formats import encodings

PLACEHOLDER = "__debezium_unavailable_value"
"""What Debezium writes for a value that the database did not send: one stored apart (TOAST) that did not change."""

_TIMES = {"ts_us": "MicroTimestamp", "ts_ns": "NanoTimestamp", "ts_ms": "Timestamp"}
_TREE: dict[str, Any] = {
    "op": "string",
    "source": dict.fromkeys(_TIMES, "bigint"),
    **dict.fromkeys(_TIMES, "bigint"),
}
_PAYLOAD, _SCHEMA = "payload", "schema"


class Change(NamedTuple):
    """What an envelope says: the row's value (struct, null: gone), what is wrong (string, null: nothing), and when it
    was changed (timestamp, null: it does not say).
    """

    value: Column
    problem: Column
    timestamp: Column


def change_of(records: DataFrame, topic: Topic) -> DataFrame:
    """Parsed records as the changes that they are.

    In: `_key` and `_value` as a format has read what is `asked` (null: none, or malformed), `_problem` (string, null:
    none). Out: the same, but `_key` and `_value` as the contract types them, `_problem` also what is wrong with the
    envelope, and `_at`: the time of the change, null where nothing says it.
    """
    json = topic.value_format == "json"
    # Exploded of one: else Spark would compute each part again wherever it is named.
    envelope = records.withColumn("_envelope", F.explode(F.array(opened(F.col("_value"), topic, json=json))))
    row = F.struct(*(_read(F.col("_envelope"), name, topic, json=json).alias(name) for name in topic.value))
    read = envelope.withColumn("_row", F.explode(F.array(row)))
    it = change(F.col("_envelope"), F.col("_row"), topic, json=json)
    parts = F.struct(it.value.alias("value"), it.problem.alias("problem"), it.timestamp.alias("timestamp"))
    found = read.withColumn("_change", F.explode(F.array(parts)))
    if topic.keyed_as == "json":
        found = found.withColumn("_key", key(F.col("_key"), topic))
    keyless = F.when(
        F.col("_key").isNotNull() & reduce(or_, (F.col("_key")[name].isNull() for name in topic.key)),
        f"the key has not all of its columns: {', '.join(topic.key)}",
    )
    found = found.withColumn("_problem", F.coalesce("_problem", keyless, "_change.problem"))
    right = F.col("_problem").isNull()
    told = {"_at": F.when(right, F.col("_change.timestamp")), "_value": F.when(right, F.col("_change.value"))}
    return found.withColumns(told).drop("_envelope", "_row", "_change")


def asked(topic: Topic, *, json: bool = True) -> dict[str, str]:
    """The columns of the value that a parser is asked for: of JSON, or of a format that has types of its own."""
    tree: dict[str, Any] = {**_TREE, "source": dict(_TREE["source"]), "after": _asked(topic, json=json)}
    for column, path in topic.metadata.items():
        *above, last = path.split(".")
        place = tree
        for part in above:
            place = place.setdefault(part, {})
        place.setdefault(last, "bigint" if last in _TIMES else topic.value[column])
    if not json:
        return {name: _ddl(kind) for name, kind in tree.items()}
    schema = {"fields": f"array<struct<field: string, fields: array<{encodings.FIELD}>>>"}
    return _columns(tree, schema if _encodable(topic) else None)


def asked_of_key(topic: Topic) -> dict[str, str]:
    """The columns of the key that a JSON parser is asked for; of another format they are the contract's."""
    return _columns(dict(topic.key), None)


def key(parsed: Column, topic: Topic) -> Column:
    """The key of a JSON key: a struct of the contract's key columns, null where `parsed` is."""
    own = F.when(parsed[_PAYLOAD].isNotNull(), parsed[_PAYLOAD]).otherwise(F.struct(*_own(parsed, topic.key)))
    return F.when(parsed.isNotNull(), own)


def opened(parsed: Column, topic: Topic, *, json: bool = True) -> Column:
    """The envelope of a parsed value, with its `schema` if one is asked for: a struct, null where `parsed` is."""
    if not json:
        return parsed
    wrapped = parsed[_PAYLOAD].isNotNull()
    found = {
        name: F.when(wrapped, parsed[_PAYLOAD][name]).otherwise(parsed[name])
        for name in asked(topic)
        if name not in (_PAYLOAD, _SCHEMA)
    }
    found["after"] = _texts(found["after"], _asked(topic, json=True))
    parts = [column.alias(name) for name, column in found.items()]
    fields = [_fields(parsed).alias(_SCHEMA)] if _encodable(topic) else []
    return F.when(parsed.isNotNull(), F.struct(*parts, *fields))


def _texts(row: Column, kinds: Mapping[str, str]) -> Column:
    """A row with its variants as text; they keep a number's digits, which Spark's JSON parser does not."""
    texts = {name: F.try_variant_get(row[name], "$", "string") for name, kind in kinds.items() if kind == "variant"}
    columns = (texts.get(name, row[name]).alias(name) for name in kinds)
    return F.when(row.isNotNull(), F.struct(*columns)) if texts else row


def change(envelope: Column, row: Column, topic: Topic, *, json: bool = True) -> Change:
    """What an `opened` envelope says, with its `row` as the contract types it; of one that is null nothing."""
    op, after = envelope["op"], envelope["after"]
    kept, gone = op.isin("c", "u", "r"), op == "d"
    at = _time(envelope)
    problem = (
        F.when(op.isNull(), "the value is no change event of Debezium: it has no op")
        .when(op == "t", "op t: the table was truncated, which ends every row; no key tells which")
        .when(~(kept | gone), F.concat(F.lit("op "), _shown(op), F.lit(" is no change of a row")))
        .when(kept & after.isNull(), F.concat(F.lit("op "), op, F.lit(" has no after: the row is not there")))
        .when(at.isNotNull() & encodings.moment(at).isNull(), "the time of its source is not in the years 1 to 9999")
        .when(kept, F.coalesce(*_problems(envelope, row, topic, json=json), F.lit(None).cast("string")))
    )
    return Change(
        F.when(envelope.isNotNull() & problem.isNull() & kept, row),
        F.when(envelope.isNotNull(), problem),
        encodings.moment(at),
    )


def called(topic: Topic, name: str) -> str:
    """What a JSON key or value has to be, in words: of a value also what it has to have as the contract says."""
    if name == "key":
        return f"a JSON object of {', '.join(f'{column} {kind}' for column, kind in topic.key.items())}"
    kinds = {column: kind for column, kind in topic.value.items() if column not in topic.metadata}
    told = (f"{column} {kind}{_by(topic, column)}" for column, kind in kinds.items())
    return f"a change event of Debezium of a row with {', '.join(told)}"


def _by(topic: Topic, column: str) -> str:
    declared = topic.encoded.get(column)
    return f" encoded as {declared}" if declared else ""


def _asked(topic: Topic, *, json: bool) -> dict[str, str]:
    """The row's own columns, with the types that a parser is asked for."""
    own = {name: kind for name, kind in topic.value.items() if name not in topic.metadata}
    asked = encodings.asked if json else encodings.asked_typed
    return {name: asked(kind, topic.encoded.get(name)) for name, kind in own.items()}


def _columns(tree: dict[str, Any], schema: dict[str, Any] | None) -> dict[str, str]:
    """Columns with and without the `payload` around them."""
    both = {**tree, _PAYLOAD: tree, **({_SCHEMA: schema} if schema else {})}
    return {name: _ddl(kind) for name, kind in both.items()}


def _ddl(kind: Any) -> str:
    if isinstance(kind, str):
        return kind
    return f"struct<{', '.join(f'`{name}`: {_ddl(part)}' for name, part in kind.items())}>"


def _own(parsed: Column, columns: dict[str, str]) -> list[Column]:
    return [parsed[name].alias(name) for name in columns]


def _encodable(topic: Topic) -> bool:
    return any(encodings.encodable(kind) for name, kind in topic.value.items() if name not in topic.metadata)


def _fields(parsed: Column) -> Column:
    """The schemas of the fields of `after`, null without."""
    return F.get(F.filter(parsed[_SCHEMA]["fields"], lambda field: field["field"] == "after"), F.lit(0))["fields"]


def _read(envelope: Column, name: str, topic: Topic, *, json: bool) -> Column:
    """A column of the contract, null also where it does not fit."""
    kind = topic.value[name]
    if name in topic.metadata:
        path = topic.metadata[name].split(".")
        found = envelope
        for part in path:
            found = found[part]
        return encodings.moment(encodings.micros(found, _TIMES[path[-1]])) if kind == "timestamp" else found
    raw = envelope["after"][name]
    if not encodings.encodable(kind):
        return raw
    if not json:
        return encodings.read_typed(raw, kind, topic.encoded.get(name))
    field = F.get(F.filter(envelope[_SCHEMA], lambda it: it["field"] == name), F.lit(0))
    return encodings.read(raw, kind, topic.encoded.get(name), field["name"], field["parameters"]["scale"])


def _problems(envelope: Column, row: Column, topic: Topic, *, json: bool) -> Iterator[Column]:
    """What is wrong with the row's columns, each null if nothing is."""
    for name, kind in topic.value.items():
        if name in topic.metadata:
            continue
        raw = envelope["after"][name]
        if encodings.encodable(kind):
            text = raw if _asked(topic, json=json)[name] == "variant" else F.to_json(F.struct(raw.alias(name)))
            how = _by(topic, name) or ", or no one says how it is encoded"
            told = F.concat(F.lit(f"column {name} is no {kind}{how}: "), _shown(text))
            yield F.when(raw.isNotNull() & row[name].isNull(), told)
        if (missing := _missing(raw, kind)) is not None:
            yield F.when(
                missing,
                f"column {name} did not come: it was not changed, and the database sends only what was (REPLICA "
                "IDENTITY FULL sends all)",
            )


def _missing(raw: Column, kind: str) -> Column | None:
    """Whether a value is the placeholder; None for a type that cannot have it."""
    match kind:
        case "string":
            return raw.contains(PLACEHOLDER)
        case "binary":
            return raw == F.lit(PLACEHOLDER).cast("binary")
        case _ if kind.upper() == "ARRAY<STRING>":
            return F.array_contains(raw, PLACEHOLDER)
        case _:
            return None


def _time(envelope: Column) -> Column:
    """When the row was changed: microseconds since 1970 as decimal(38,0); null if the envelope does not say.

    The source's own time, the finest first; else when Debezium processed it. A number of 0 or less is none.
    """
    told = [(place[name], unit) for place in (envelope["source"], envelope) for name, unit in _TIMES.items()]
    return F.coalesce(*(F.when(number > 0, encodings.micros(number, unit)) for number, unit in told))


def _shown(text: Column) -> Column:
    return F.substring(F.make_valid_utf8(text), 1, 200)
