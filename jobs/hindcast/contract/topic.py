"""The models of a topic and of an input; `formats`, `envelope` and `valid_time` check them.

A new field that does not change how a record becomes a row belongs in `_NO_DECODING`; one that changes no row of a
view, in `model._NOT_DEFINING`; one that changes no answer at all, also in `model._UNHASHED`. `scripts/docs.py` writes
the reference, `hindcast schema` the JSON Schema.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag

from hindcast.common.errors import ContractError
from hindcast.contract.archive import Archive
from hindcast.contract.avro_file import SchemaFile
from hindcast.contract.expectation import HOLD_DESCRIPTION, Gate, Hold, gate_schema
from hindcast.contract.field_types import EnvelopePath, KafkaName, Pattern, Sensitive, TableName, Widen
from hindcast.contract.patterns import MAX_RUN_SECONDS, SIMPLER_FIX, SlowPatternError, find_matches
from hindcast.contract.types import Allowance, ColumnName, ColumnType, ContractModel, Duration, ExactText, Flag, Moment

ColumnTypes = dict[ColumnName, ColumnType]
Format = Literal["json", "string", "primitive", "avro"]
Encoding = Literal["Decimal", "VariableScaleDecimal", "Number", "Date", "Timestamp", "MicroTimestamp", "NanoTimestamp"]
_HEADER = re.compile(r"header\s+([A-Za-z0-9_][A-Za-z0-9_.:-]*)")
_NO_DECODING = {
    *("pattern", "history_retention", "versioned", "ttl", "since"),
    *("archive", "on_gap", "arrival", "max_time_skew", "max_malformed", "keep", "widen", "sensitive", "hold", "expect"),
}


class TimeSkew(ContractModel):
    """How far from the run's known-at a record may be dated."""

    before: Duration | None = Field(
        None, description="How long before the run's known-at a record may be dated; without limit if left out."
    )
    after: Duration = Field(
        "1 day", validate_default=True, description="How long after the run's known-at a record may be dated."
    )


class Keep(ContractModel):
    """How long history that no run needs is kept before `hindcast trim` removes it."""

    table: Duration = Field(description="How long the table's history is kept.")
    log: Duration | None = Field(
        None,
        description="How long records are kept with their bytes, so that their table can be derived again; as long "
        "as the table if left out.",
    )
    quarantine: Duration | None = Field(
        None,
        description="How long refused records are kept, from the run that refused them; as long as the log if left "
        "out.",
    )


_Keep = Annotated[
    Annotated[Duration, Tag("[duration]")] | Annotated[Keep, Tag("[object]")],
    Discriminator(lambda value: "[object]" if isinstance(value, dict | Keep) else "[duration]"),
]
_Skew = Annotated[
    Annotated[Duration, Tag("[duration]")] | Annotated[TimeSkew, Tag("[object]")],
    Discriminator(lambda value: "[object]" if isinstance(value, dict | TimeSkew) else "[duration]"),
]


class Topic(ContractModel):
    """A Kafka topic and how it is read."""

    topic: KafkaName = Field(None, description="The topic's name in Kafka; the name in the contract if left out.")
    pattern: Pattern = Field(
        None,
        description="Instead of `topic`: a regular expression. All topics whose whole name it matches are one table, "
        "with one log.",
    )
    read: Literal["table", "stream"] = Field(
        description="table: records are versions of their key, a null value ends the key. stream: records are events."
    )
    key: ColumnTypes = Field(description="Columns of the record's key.", min_length=1)
    key_format: Format | None = Field(
        None,
        description="The format of the key, as for value_format. By default string for one column, else json.",
    )
    value: ColumnTypes = Field(description="Columns of the record's value.", min_length=1)
    value_format: Format = Field(
        "json",
        description="json: an object. string: the text of its one column. primitive: its one column as Kafka's own "
        "serializers write it. avro: with the schema of value_schema, or of the schema registry.",
    )
    as_json: Literal["typed", "strict", "lenient"] = Field(
        "typed",
        alias="json",
        description="How JSON is read. typed: missing fields are null, others are ignored. strict: exactly the "
        "columns must be present. lenient: also numbers and booleans as text, comments, single quotes, bare names.",
    )
    key_schema: SchemaFile | None = Field(
        None,
        description="The Avro schema of all keys: a file beside the contract. If left out, each key names a schema "
        "in the schema registry.",
    )
    value_schema: SchemaFile | None = Field(None, description="The same for the values.")
    renamed: dict[ColumnName, Annotated[tuple[ExactText, ...], Field(min_length=1)]] = Field(
        default_factory=dict,
        description="Fields that once had other names: the column is read from the first of its name and these that "
        "exists. For JSON objects and Avro records.",
    )
    headers: dict[ColumnName, ExactText] = Field(
        default_factory=dict,
        description="Columns of the value that are read from the record's header of this name, the last one if there "
        "are several; UTF-8 text of the column's type, or bytes for a binary column.",
    )
    valid_time: str | None = Field(
        None,
        description="Spark SQL expression over the columns of key and value, and `record_timestamp` (Kafka's own), "
        "that gives the timestamp at which a record is true: timestamp_millis(ts). Kafka's own if left out.",
    )
    arrival: str | None = Field(
        None,
        description="When a record could be known: `record_timestamp` (Kafka's own), `header NAME` (ISO 8601 or "
        "milliseconds since 1970), or an expression as for `valid_time`. Along a partition it never goes back "
        "([Arrival](topics/timestamps.md#arrival)). The run's known-at if left out.",
    )
    envelope: Literal["debezium"] | None = Field(
        None,
        description="debezium: records are change events of a database's table. `value` describes its rows, `key` its "
        "primary key; a row is true from when the database changed it (docs/topics/debezium.md).",
    )
    metadata: dict[ColumnName, EnvelopePath] = Field(
        {}, description="Columns of `value` that are read from the envelope: `{lsn: source.lsn, tx: transaction.id}`."
    )
    encoded: dict[ColumnName, Encoding] = Field(
        {},
        description="How an envelope's decimals, dates and timestamps are encoded in JSON where the records have no "
        "schemas with their types: `{price: Decimal, day: Date, at: MicroTimestamp}`.",
    )
    history_retention: Duration | None = Field(
        None, description="How far behind stream time a table still takes versions; without limit if left out."
    )
    versioned: Flag = Field(
        True,
        description="kafka: whether a table is looked up by time, among the versions of a key (KIP-889). false: its "
        "row is the record that came last, whatever the timestamp (KIP-258). It changes no corrected answer.",
    )
    ttl: Duration | None = Field(
        None, description="A version that is not renewed within this time ends; until it is changed if left out."
    )
    since: Moment | None = Field(
        None,
        alias="from",
        description="A stream is replayed from its first record dated at this moment or later; from its beginning if "
        "left out. If it is moved back, the next run replays the records between.",
    )
    archive: Archive | None = Field(
        None,
        description="Files with the records that Kafka no longer has (docs/topics/archives.md); Kafka's alone are "
        "replayed if left out.",
    )
    on_gap: Literal["stop", "record"] = Field(
        "stop",
        description="Offsets that retention, compaction or the deletion of a topic by pattern took before they were "
        "replayed, and those that an archive lacks. "
        "stop: the run stops and lists them. record: it goes on, and the ledger has them with the fate gone.",
    )
    max_time_skew: _Skew = Field(
        "1 day",
        validate_default=True,
        description="Records dated later than the run's known-at, or with `arrival` their own, plus this are refused "
        "(fate time_skew); `{before: 30 days, after: 1 hour}` bounds both sides.",
    )
    max_malformed: Allowance = Field(
        0,
        description="How many records of a run may be malformed before the run stops; or which share of the records "
        "that it replays: 1%, rounded down, so that one malformed record stops every small run; a number does not.",
    )
    max_record_bytes: int | None = Field(
        None,
        gt=0,
        strict=True,
        description="Records whose key, value and headers have more bytes than this are malformed (oversized); without "
        "limit if left out.",
    )
    keep: _Keep | None = Field(
        None,
        description="How long history is kept: what was true, or known, longer ago `hindcast trim` removes "
        "(docs/retention.md). For table, log and quarantine, or for each: `{table: 90 days, log: 52 weeks}`. For ever "
        "if left out.",
    )
    widen: Widen = "refuse"
    sensitive: Sensitive = False
    hold: Hold = Field("key", description=HOLD_DESCRIPTION)
    expect: tuple[Gate, ...] = Field((), json_schema_extra={"items": gate_schema()})

    def select_topics(self, kafka: Iterable[str]) -> list[str]:
        """Return those topics in Kafka whose whole name `pattern` matches; ContractError if that takes too long.

        Kafka's own topics (`__...`) never match.
        """
        names = tuple(name for name in kafka if not name.startswith("__"))
        return [] if self.pattern is None else [*_match_names(self.pattern, names)]

    @property
    def arrival_header(self) -> str | None:
        """The name of the header that says when a record arrived; None if none does.

        {arrival: header sent_at} -> sent_at
        """
        found = None if self.arrival is None else _HEADER.fullmatch(self.arrival.strip())
        return found and found[1]

    @property
    def time_skew(self) -> TimeSkew:
        """`max_time_skew` with both its sides."""
        skew = self.max_time_skew
        return skew if isinstance(skew, TimeSkew) else TimeSkew(after=skew)

    @property
    def retention(self) -> Keep | None:
        """`keep` with all its parts; None keeps everything for ever."""
        if self.keep is None:
            return None
        keep = self.keep if isinstance(self.keep, Keep) else Keep(table=self.keep)
        log = keep.table if keep.log is None else keep.log
        return Keep(table=keep.table, log=log, quarantine=log if keep.quarantine is None else keep.quarantine)

    @property
    def effective_key_format(self) -> str:
        """The key's format in force."""
        return self.key_format or ("string" if len(self.key) == 1 and self.envelope is None else "json")

    @property
    def hash_decoding(self) -> str:
        """The hash of how a record's bytes become a row, 16 hex digits: all fields except those for which records are
        taken, how long versions last, gates and sensitive columns.
        """
        fields = self.model_dump(mode="json", exclude_defaults=True, exclude=_NO_DECODING)
        return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()[:16]


class Input(ContractModel):
    """A table of another pipeline. A run reads it as it was known at that pipeline's last completed run."""

    table: TableName = Field(
        description="The other pipeline and its table: restaurant.menu.",
    )
    read: Literal["table", "stream"] = Field(
        "table", description="table: its rows are versions of their key. stream: they are events."
    )
    key: ColumnTypes = Field(description="Its key columns.", min_length=1)
    value: ColumnTypes = Field(description="Its other columns that are used here.", min_length=1)
    sensitive: Sensitive = False


@lru_cache(maxsize=512)
def _match_names(pattern: str, names: tuple[str, ...]) -> tuple[str, ...]:
    try:
        [matched] = find_matches([pattern], names, MAX_RUN_SECONDS)
    except SlowPatternError:
        found = f"takes more than {MAX_RUN_SECONDS:.0f} seconds to match with the names of topics in Kafka"
        raise ContractError(found, where=f"pattern {pattern}", fix=SIMPLER_FIX) from None
    return tuple(matched)
