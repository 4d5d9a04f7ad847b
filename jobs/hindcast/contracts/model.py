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


class Model(BaseModel):
    """A frozen object that refuses fields it does not know."""

    model_config = ConfigDict(extra="forbid", frozen=True, str_strip_whitespace=True)


class Expectation(Model):
    """One gate: an expectation of Great Expectations with its parameters, and what a failure does."""

    type: str = Field(pattern=r"^(expect_[a-z0-9_]+|unexpected_rows_expectation)$")
    kwargs: dict[str, Any] = Field(default_factory=dict)
    on_failure: Literal["stop", "warn"] = "stop"

    @property
    def columns(self) -> list[str]:
        """The columns that the parameters name."""
        named = [self.kwargs[p] for p in ("column", "column_A", "column_B") if p in self.kwargs]
        return [*named, *self.kwargs.get("column_list", [])]


def _as_expectation(item: object) -> object:
    """`{expect_x: {column: a}, on_failure: warn}` as the fields of an Expectation."""
    if not isinstance(item, dict) or "type" in item:
        return item
    names = [name for name in item if name != "on_failure"]
    if len(names) != 1:
        raise ValueError(f"a gate names one expectation, found {len(names)}: {', '.join(map(str, names)) or 'none'}")
    kept = {"on_failure": item["on_failure"]} if "on_failure" in item else {}
    return {"type": names[0], "kwargs": item[names[0]] or {}, **kept}


def _gate_schema() -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"on_failure": {"enum": ["stop", "warn"], "default": "stop"}},
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
    max_time_skew: Duration = Field(
        "1 day",
        validate_default=True,
        description="Records dated later than the run's known-at plus this are refused (fate time_skew).",
    )
    max_malformed: int = Field(
        0, ge=0, description="How many records of a run may fail to decode before the run stops."
    )
    expect: tuple[Gate, ...] = Field((), json_schema_extra={"items": _gate_schema()})

    @property
    def keyed_as(self) -> str:
        """The key's format in force."""
        return self.key_format or ("string" if len(self.key) == 1 else "json")


class StreamTableJoin(Model):
    """Each event with the table's version that is valid at the event's timestamp."""

    table: Name = Field(description="The table that is looked up.")
    on: str | None = Field(
        None,
        description="Spark SQL expression over the stream's columns that gives the table's key; its key if absent.",
    )
    how: Literal["inner", "left"] = Field("inner", description="inner drops events without a version, left keeps them.")


class View(Model):
    """A table derived from topics and other views."""

    stream: Name = Field(description="The stream that is joined.")
    join: StreamTableJoin
    where: str | None = Field(None, description="Spark SQL condition; rows that do not pass are left out.")
    select: dict[ColumnName, str] | None = Field(
        None, description="Columns of the view as Spark SQL expressions; the key is kept. All columns if left out."
    )
    semantics: Literal["corrected"] = Field("corrected", description="How late records are read (docs/semantics.md).")
    expect: tuple[Gate, ...] = Field((), json_schema_extra={"items": _gate_schema()})


class Contract(Model):
    """One pipeline: one file, one DAG."""

    pipeline: Name = Field(description="The pipeline's name: that of its DAG and of its folder in the warehouse.")
    description: str = Field("", description="What it is for, in Markdown; shown in Airflow.")
    schedule: str | None = Field(None, description="A cron expression or preset (@hourly); only by hand if left out.")
    start: Moment = Field(description="The first scheduled interval starts here (UTC).")
    catchup: bool = Field(False, description="Whether Airflow runs the intervals between start and today by itself.")
    topics: dict[Name, Topic] = Field(min_length=1)
    views: dict[Name, View] = Field(default_factory=dict)

    @property
    def hash(self) -> str:
        """What the plan remembers of the contract: SHA-256 of its canonical JSON, 16 hex digits."""
        text = json.dumps(self.model_dump(mode="json"), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def kafka_topic(self, name: str) -> str:
        """The name in Kafka of a topic of the contract."""
        return self.topics[name].topic or name

    def expectations(self, table: str) -> tuple[Expectation, ...]:
        """The gates of a topic's table or of a view."""
        return (self.topics.get(table) or self.views[table]).expect
