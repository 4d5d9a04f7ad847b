"""What a user writes: one pipeline, its topics, its views and their gates.

The objects are frozen and validated; `load.py` makes them from YAML, `check.py` checks the names between them.
"""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from hindcast.contracts.types import ColumnName, ColumnType, Duration, Name


def _as_datetime(value: object) -> object:
    """YAML gives a date for `2026-01-01`; a moment is meant."""
    if value is not None and not isinstance(value, datetime | str) and hasattr(value, "year"):
        return f"{value}T00:00:00+00:00"
    return value


def _as_utc(value: datetime) -> datetime:
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


Moment = Annotated[
    datetime,
    BeforeValidator(_as_datetime),
    AfterValidator(_as_utc),
    WithJsonSchema(
        {
            "type": "string",
            "pattern": r"^\d{4}-\d{2}-\d{2}([T ]\d{2}:\d{2}(:\d{2}(\.\d+)?)?(Z|[+-]\d{2}:\d{2})?)?$",
            "examples": ["2026-01-01", "2026-01-01T06:00:00Z"],
        }
    ),
]
Columns = dict[ColumnName, ColumnType]
Sensitive = Annotated[
    bool | tuple[ColumnName, ...],
    Field(description="Columns whose values, and what is computed of them, no report and no log shows; true is all."),
]


class Model(BaseModel):
    """A frozen object that refuses fields it does not know."""

    model_config = ConfigDict(extra="forbid", frozen=True, str_strip_whitespace=True)


class Expectation(Model):
    """One gate: an expectation of Great Expectations with its parameters, what it looks at, and what a failure does."""

    type: str = Field(pattern=r"^(expect_[a-z0-9_]+|unexpected_rows_expectation)$")
    kwargs: dict[str, Any] = Field(default_factory=dict)
    on_failure: Literal["stop", "quarantine", "warn"] = "stop"
    rows: Literal["change", "table"] = "change"

    @property
    def columns(self) -> list[str]:
        """The columns that the parameters name."""
        named = [self.kwargs.get(p) for p in ("column", "column_A", "column_B")]
        listed = self.kwargs.get("column_list")
        return [c for c in (*named, *(listed if isinstance(listed, list) else ())) if isinstance(c, str)]

    @property
    def beyond(self) -> bool:
        """Whether it looks at more than what changes in the table, so that it can fail though nothing does."""
        return self.type in _BEYOND

    @property
    def refers_to(self) -> str | None:
        """The other table that it looks into."""
        other = self.kwargs.get("table")
        return other if self.type == "expect_foreign_keys_to_be_found" and isinstance(other, str) else None


AGING = "expect_table_to_be_fresh"
"""The rule that can fail though nothing at all has happened."""

_BEYOND = (
    AGING,
    "expect_offsets_to_be_conserved",
    "expect_share_of_records_to_be_at_most",
    "expect_share_of_unmatched_to_be_at_most",
)


def _as_expectation(item: object) -> object:
    """`{expect_x: {column: a}, on_failure: warn}` as the fields of an Expectation."""
    if not isinstance(item, dict) or "type" in item:
        return item
    names = [name for name in item if name not in OF_GATES]
    if len(names) != 1:
        raise ValueError(f"a gate names one expectation, found {len(names)}: {', '.join(map(str, names)) or 'none'}")
    return {
        "type": names[0],
        "kwargs": item[names[0]] or {},
        **{name: item[name] for name in OF_GATES if name in item},
    }


OF_GATES = ("on_failure", "rows")
"""What stands beside an expectation, not among its parameters."""


def _gate_schema() -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {
            "on_failure": {
                "enum": ["stop", "quarantine", "warn"],
                "default": "stop",
                "description": "stop: nothing of the table is published. quarantine: the whole change of the failing "
                "keys is held back. warn: it is told.",
            },
            "rows": {
                "enum": ["change", "table"],
                "default": "change",
                "description": "What it looks at: the rows that a run would open, or the table as it would be.",
            },
        },
        "patternProperties": {"^(expect_[a-z0-9_]+|unexpected_rows_expectation)$": {"type": ["object", "null"]}},
        "additionalProperties": False,
    }


Gate = Annotated[Expectation, BeforeValidator(_as_expectation, json_schema_input_type=Any)]


class Topic(Model):
    """A Kafka topic and how it is read."""

    topic: str | None = Field(None, description="The topic's name in Kafka; the name in the contract if left out.")
    read: Literal["table", "stream"] = Field(
        description="table: records are versions of their key, a null value ends the key. stream: records are events."
    )
    key: Columns = Field(description="Columns of the record's key.", min_length=1)
    key_format: Literal["string", "json"] | None = Field(
        None, description="string: the key is the text of its one column. json: an object. By default by their number."
    )
    value: Columns = Field(description="Columns of the record's value, a JSON object.", min_length=1)
    history_retention: Duration | None = Field(
        None, description="How far behind stream time a table still takes versions; without limit if left out."
    )
    ttl: Duration | None = Field(
        None, description="A version that is not renewed within this time ends; until it is changed if left out."
    )
    since: Moment | None = Field(
        None,
        alias="from",
        description="A stream is replayed from its first record dated at this moment or later; from its beginning if "
        "left out. Moved back, the next run replays what lies between.",
    )
    on_gap: Literal["stop", "record"] = Field(
        "stop",
        description="Offsets that retention or compaction took before they were replayed. stop: the run stops and says "
        "which. record: it goes on, and the ledger has them with the fate gone.",
    )
    max_time_skew: Duration = Field(
        "1 day",
        validate_default=True,
        description="Records dated later than the run's known-at plus this are refused (fate time_skew).",
    )
    max_malformed: int = Field(
        0, ge=0, description="How many records of a run may fail to decode before the run stops."
    )
    sensitive: Sensitive = False
    expect: tuple[Gate, ...] = Field((), json_schema_extra={"items": _gate_schema()})

    @property
    def keyed_as(self) -> str:
        """The key's format in force."""
        return self.key_format or ("string" if len(self.key) == 1 else "json")


class Input(Model):
    """A table of another pipeline. A run reads it as it was known at that pipeline's last completed run."""

    table: str = Field(
        pattern=r"^[a-z][a-z0-9_]*\.[a-z][a-z0-9_]*$",
        description="The other pipeline and its table: restaurant.menu.",
    )
    read: Literal["table", "stream"] = Field(
        "table", description="table: its rows are versions of their key. stream: they are events."
    )
    key: Columns = Field(description="Its key columns.", min_length=1)
    value: Columns = Field(description="Those of its other columns that are used here.", min_length=1)
    sensitive: Sensitive = False


class Join(Model):
    """The other side of a join: a table for a stream or a table, a stream for a stream."""

    table: Name | None = Field(None, description="The table that is joined.")
    stream: Name | None = Field(None, description="The stream that is joined to a stream, within a window.")
    on: str | tuple[str, ...] | None = Field(
        None,
        description="Spark SQL expression over the first input that gives the table's key, one per key column; "
        "the first input's own key if left out. Of two tables: a join on a foreign key.",
    )
    how: Literal["inner", "left", "outer"] = Field(
        "inner", description="inner keeps what has a match, left all of the first input, outer all of both."
    )
    before: Duration | None = Field(None, description="How much earlier an event of the joined stream may be.")
    after: Duration | None = Field(None, description="How much later an event of the joined stream may be.")
    grace: Duration | None = Field(
        None, description="How long Kafka Streams would wait with the look-up; it changes no corrected answer."
    )

    @property
    def keys(self) -> tuple[str, ...]:
        """The expressions of `on`, none if it was left out."""
        return (self.on,) if isinstance(self.on, str) else self.on or ()


class Window(Model):
    """The windows of a stream's aggregate: exactly one of tumbling, hopping, sliding, session."""

    tumbling: Duration | None = Field(None, description="Windows of this size, one after the other.")
    hopping: Duration | None = Field(None, description="Windows of this size, one at every `advance`.")
    advance: Duration | None = Field(None, description="How far apart hopping windows start.")
    sliding: Duration | None = Field(None, description="Windows of events that are at most this far apart.")
    session: Duration | None = Field(None, description="Windows that end after this time without an event.")
    grace: Duration = Field(
        "0 ms", validate_default=True, description="How far behind stream time events are still taken."
    )


class View(Model):
    """A table derived from topics and other views: a join, an aggregate, or a transformation of one input."""

    stream: Name | None = Field(None, description="The stream it starts from: a topic, or a view of events.")
    table: Name | None = Field(None, description="The table it starts from: a topic, or a view of versions.")
    join: Join | None = Field(None, description="What is joined to it.")
    where: str | None = Field(None, description="Spark SQL condition; rows that do not pass are left out.")
    select: dict[ColumnName, str] | None = Field(
        None, description="Columns of the view as Spark SQL expressions; the key is kept. All columns if left out."
    )
    key: dict[ColumnName, str] | None = Field(
        None, description="A new key, as Spark SQL expressions; of a table it must hold the old one."
    )
    group_by: dict[ColumnName, str] | None = Field(
        None, description="The groups of an aggregate, as Spark SQL expressions; the key if left out."
    )
    aggregate: dict[ColumnName, str] | None = Field(
        None, description="Spark SQL aggregates of one argument: count(*), sum(amount), avg(delay)."
    )
    window: Window | None = Field(None, description="The windows of a stream's aggregate; none: all events so far.")
    semantics: Literal["corrected"] = Field("corrected", description="How late records are read (docs/semantics.md).")
    sensitive: Sensitive = False
    expect: tuple[Gate, ...] = Field((), json_schema_extra={"items": _gate_schema()})

    @property
    def first(self) -> str:
        """The name of the input that it starts from."""
        return self.stream or self.table or ""

    @property
    def second(self) -> str | None:
        """The name of the input that is joined."""
        return (self.join.table or self.join.stream) if self.join else None

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of its inputs."""
        return (self.first, self.second) if self.second else (self.first,)


class Contract(Model):
    """One pipeline: one file, one DAG."""

    pipeline: Name = Field(description="The pipeline's name: that of its DAG and of its folder in the warehouse.")
    description: str = Field("", description="What it is for, in Markdown; shown in Airflow.")
    schedule: str | None = Field(
        None,
        description="A cron expression or preset (@hourly); `inputs`: whenever one of `inputs` was published; only by "
        "hand if left out.",
    )
    start: Moment = Field(description="The first scheduled interval starts here (UTC).")
    catchup: bool = Field(False, description="Whether Airflow runs the intervals between start and today by itself.")
    topics: dict[Name, Topic] = Field(min_length=1)
    inputs: dict[Name, Input] = Field(default_factory=dict)
    views: dict[Name, View] = Field(default_factory=dict)

    @property
    def hash(self) -> str:
        """What the plan remembers of the contract: SHA-256 of its canonical JSON, 16 hex digits.

        A field with its default is as if left out: a new version of Hindcast with new fields changes no contract.
        """
        text = json.dumps(self.model_dump(mode="json", exclude_defaults=True), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def ordered(self) -> tuple[str, ...]:
        """The views, each after those that it is made of."""
        found: list[str] = []
        while len(found) < len(self.views):
            found += [
                name
                for name, view in self.views.items()
                if name not in found and all(i in found or i in self.topics or i in self.inputs for i in view.inputs)
            ]
        return tuple(found)

    def before(self, name: str) -> tuple[str, ...]:
        """The tables that a run has when it gates this one: the inputs, and what it replays and builds before."""
        order = (*self.topics, *self.ordered)
        return (*self.inputs, *order[: order.index(name)])

    def below(self, name: str) -> frozenset[str]:
        """A topic, input or view with every table that is made of it, or whose gates look into one of these."""
        found, wider = {name}, {name}
        while wider:
            wider = {
                other
                for other in (*self.topics, *self.views)
                if other not in found
                and found.intersection(
                    (*self.made_of(other), *(gate.refers_to for gate in self.expectations(other) if gate.refers_to))
                )
            }
            found |= wider
        return frozenset(found)

    def made_of(self, name: str) -> tuple[str, ...]:
        """The topics, inputs and views that a table is made of; a topic's is made of none."""
        return self.views[name].inputs if name in self.views else ()

    def kafka_topic(self, name: str) -> str:
        """The name in Kafka of a topic of the contract."""
        return self.topics[name].topic or name

    def expectations(self, table: str) -> tuple[Expectation, ...]:
        """The gates of a topic's table or of a view."""
        return (self.topics.get(table) or self.views[table]).expect
