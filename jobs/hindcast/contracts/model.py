"""What a user writes: one pipeline, its topics, its views and their gates.

The objects are frozen and validated; `load.py` makes them from YAML, `check.py` checks the names between them.
"""

from __future__ import annotations

import hashlib
import json
import re
from datetime import timedelta
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from hindcast.contracts.avro import SchemaFile
from hindcast.contracts.expectation import Expectation, Gate, gate_schema
from hindcast.contracts.fields import EnvelopePath, KafkaName, Looked, Pattern, Sensitive, TableName
from hindcast.contracts.types import Allowance, ColumnName, ColumnType, Duration, Flag, Model, Moment, Name

Columns = dict[ColumnName, ColumnType]
Format = Literal["json", "string", "primitive", "avro"]
Encoding = Literal["Decimal", "VariableScaleDecimal", "Number", "Date", "Timestamp", "MicroTimestamp", "NanoTimestamp"]

_NO_DECODING = {
    *("pattern", "history_retention", "versioned", "ttl", "since"),
    *("on_gap", "max_time_skew", "max_malformed", "keep", "sensitive", "expect"),
}


class TimeSkew(Model):
    """How far from the run's known-at a record may be dated."""

    before: Duration | None = Field(
        None, description="How long before the run's known-at a record may be dated; without limit if left out."
    )
    after: Duration = Field(
        "1 day", validate_default=True, description="How long after the run's known-at a record may be dated."
    )


class Keep(Model):
    """How long what a run no longer needs is kept before `hindcast trim` removes it."""

    table: Duration = Field(description="How long the table's history is kept.")
    log: Duration | None = Field(
        None,
        description="How long records are kept with their bytes, so that their table can be derived anew; as long "
        "as the table if left out.",
    )
    quarantine: Duration | None = Field(
        None,
        description="How long refused records are kept, from the run that refused them; as long as the log if left "
        "out.",
    )


_Keep = Annotated[
    Annotated[Duration, Tag("[duration]")] | Annotated[Keep, Tag("[object]")],
    Discriminator(lambda told: "[object]" if isinstance(told, dict | Keep) else "[duration]"),
]
_Skew = Annotated[
    Annotated[Duration, Tag("[duration]")] | Annotated[TimeSkew, Tag("[object]")],
    Discriminator(lambda told: "[object]" if isinstance(told, dict | TimeSkew) else "[duration]"),
]


class Topic(Model):
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
    key: Columns = Field(description="Columns of the record's key.", min_length=1)
    key_format: Format | None = Field(
        None,
        description="How the key is written, as value_format says it. By default string for one column, else json.",
    )
    value: Columns = Field(description="Columns of the record's value.", min_length=1)
    value_format: Format = Field(
        "json",
        description="json: an object. string: the text of its one column. primitive: its one column as Kafka's own "
        "serializers write it. avro: with the schema of value_schema, or of the schema registry.",
    )
    as_json: Literal["typed", "strict", "lenient"] = Field(
        "typed",
        alias="json",
        description="How JSON is read. typed: missing fields are null, others are passed over. strict: exactly the "
        "columns must be there. lenient: also numbers and booleans as text, comments, single quotes, bare names.",
    )
    key_schema: SchemaFile | None = Field(
        None,
        description="The Avro schema of all keys: a file beside the contract. If left out, each names one of the "
        "schema registry.",
    )
    value_schema: SchemaFile | None = Field(None, description="The same of the values.")
    renamed: dict[ColumnName, Annotated[tuple[str, ...], Field(min_length=1)]] = Field(
        default_factory=dict,
        description="Fields that once had other names: the column is read from the first of its name and these that "
        "is there. Of JSON objects and Avro records.",
    )
    headers: dict[ColumnName, str] = Field(
        default_factory=dict,
        description="Columns of the value that are read from the record's header of this name, the last one if there "
        "are several; UTF-8 text of the column's type, of a binary one its bytes.",
    )
    valid_time: str | None = Field(
        None,
        description="Spark SQL expression over the columns of key and value, and `record_timestamp` (Kafka's own), "
        "that gives the timestamp at which a record is true: timestamp_millis(ts). Kafka's own if left out.",
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
        "schemas that say it: `{price: Decimal, day: Date, at: MicroTimestamp}`.",
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
        "left out. Moved back, the next run replays what lies between.",
    )
    on_gap: Literal["stop", "record"] = Field(
        "stop",
        description="Offsets that retention, compaction or the deletion of a topic by pattern took before they were "
        "replayed. stop: the run stops and says which. record: it goes on, and the ledger has them with the fate gone.",
    )
    max_time_skew: _Skew = Field(
        "1 day",
        validate_default=True,
        description="Records dated later than the run's known-at plus this are refused (fate time_skew); "
        "`{before: 30 days, after: 1 hour}` bounds both sides.",
    )
    max_malformed: Allowance = Field(
        0,
        description="How many records of a run may be malformed before the run stops; or which share of those that it "
        "brings: 1%.",
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
        "(docs/retention.md). Of table, log and quarantine, or of each: `{table: 90 days, log: 52 weeks}`. For ever if "
        "left out.",
    )
    sensitive: Sensitive = False
    expect: tuple[Gate, ...] = Field((), json_schema_extra={"items": gate_schema()})

    def matches(self, kafka: str) -> bool:
        """Whether `pattern` takes a topic of Kafka: it matches the whole name (`re.fullmatch`).

        Kafka's own topics (`__...`) are never taken.
        """
        own = kafka.startswith("__")
        return self.pattern is not None and not own and re.fullmatch(self.pattern, kafka) is not None

    @property
    def time_skew(self) -> TimeSkew:
        """`max_time_skew` with both its sides."""
        skew = self.max_time_skew
        return skew if isinstance(skew, TimeSkew) else TimeSkew(after=skew)

    @property
    def kept(self) -> Keep | None:
        """`keep` with all its parts; None: everything, for ever."""
        if self.keep is None:
            return None
        told = self.keep if isinstance(self.keep, Keep) else Keep(table=self.keep)
        log = told.table if told.log is None else told.log
        return Keep(table=told.table, log=log, quarantine=log if told.quarantine is None else told.quarantine)

    @property
    def keyed_as(self) -> str:
        """The key's format in force."""
        return self.key_format or ("string" if len(self.key) == 1 and self.envelope is None else "json")

    @property
    def decoding(self) -> str:
        """How a record's bytes become a row, as 16 hex digits: all fields but those that say which records are taken,
        how long versions last, and what guards or hides rows.
        """
        told = self.model_dump(mode="json", exclude_defaults=True, exclude=_NO_DECODING)
        return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:16]


class Input(Model):
    """A table of another pipeline. A run reads it as it was known at that pipeline's last completed run."""

    table: TableName = Field(
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
    on: Looked = Field(
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
        None,
        description="kafka: how long an event waits before it is looked up (KIP-923); of two streams: how much longer "
        "their events can be joined. It changes no corrected answer.",
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
    emit: Literal["update", "suppress_until_window_closes", "on_window_close"] = Field(
        "update",
        description="kafka: update: each change of a window comes out at once. suppress_until_window_closes: its last "
        "result, as suppress(untilWindowCloses) tells it. on_window_close: as EmitStrategy.onWindowClose does.",
    )
    store_retention: Duration | None = Field(
        None,
        description="kafka: how far back the window store goes; size + grace, 2 x sliding + grace or gap + grace if "
        "left out.",
    )

    @property
    def reach(self) -> timedelta:
        """What Kafka Streams keeps in the window store at least, and by default."""
        length = self.tumbling or self.hopping or self.session or 2 * (self.sliding or timedelta(0))
        return length + self.grace


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
        None, min_length=1, description="A new key, as Spark SQL expressions; of a table it must hold the old one."
    )
    group_by: dict[ColumnName, str] | None = Field(
        None,
        min_length=1,
        description="The groups of an aggregate, as Spark SQL expressions; the key if left out.",
    )
    aggregate: dict[ColumnName, str] | None = Field(
        None, description="Spark SQL aggregates of one argument: count(*), sum(amount), avg(delay)."
    )
    window: Window | None = Field(None, description="The windows of a stream's aggregate; none: all events so far.")
    semantics: Literal["corrected", "kafka"] = Field(
        "corrected",
        description="How late records are read. corrected: they correct past answers (docs/semantics.md). kafka: as "
        "Kafka Streams does, record for record (docs/kafka-parity.md).",
    )
    wait: Flag = Field(
        False,
        description="kafka: a record waits until every input partition has gone past its timestamp. What comes out "
        "then does not depend on how runs cut the log.",
    )
    history_retention: Duration | None = Field(
        None,
        description="kafka: the result of an aggregate, or of a join of tables, is put in a versioned store with this "
        "history retention; in one of the latest rows alone if left out.",
    )
    suppress: Duration | None = Field(
        None,
        description="kafka: a key's update is held back for this time, and later ones take its place "
        "(suppress(untilTimeLimit)). Of a table that is not versioned.",
    )
    keep: Duration | None = Field(
        None, description="How long its history is kept, as that of a topic; for ever if left out."
    )
    sensitive: Sensitive = False
    expect: tuple[Gate, ...] = Field((), json_schema_extra={"items": gate_schema()})

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

    @property
    def stored(self) -> bool:
        """Whether its table is made anew, in a store of its own; where and select (filter, mapValues) make none."""
        return self.aggregate is not None or self.join is not None


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
    catchup: Flag = Field(False, description="Whether Airflow runs the intervals between start and today by itself.")
    topics: dict[Name, Topic] = Field(min_length=1)
    inputs: dict[Name, Input] = Field(default_factory=dict)
    views: dict[Name, View] = Field(default_factory=dict)

    @property
    def hash(self) -> str:
        """What the plan remembers of the contract: SHA-256 of its canonical JSON, 16 hex digits.

        A field with its default is as if left out: a new version of Hindcast with new fields changes no contract. How
        long history is kept is no part of it: it changes no answer.
        """
        kept: dict[str, Any] = {part: {"__all__": {"keep"}} for part in ("topics", "views")}
        text = json.dumps(self.model_dump(mode="json", exclude_defaults=True, exclude=kept), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def definition(self, name: str) -> str:
        """What a view is computed by, as 16 hex digits: it and all it is made of, without what guards or hides it."""
        upstream, parts = self.upstream(name), {**self.topics, **self.views}
        told = {
            n: parts[n].model_dump(
                mode="json", exclude_defaults=True, exclude={"expect", "sensitive", "max_record_bytes", "keep"}
            )
            for n in parts
            if n in upstream
        }
        return hashlib.sha256(json.dumps(told).encode()).hexdigest()[:16]

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

    def upstream(self, name: str) -> tuple[str, ...]:
        """A table and all that it is made of, and these are made of, each once."""
        found = [name]
        for one in found:
            found += [i for i in self.made_of(one) if i not in found]
        return tuple(found)

    def versioned(self, name: str) -> tuple[bool, timedelta | None]:
        """Whether a `kafka` view meets a topic or `kafka` view as a versioned table, and that one's history retention.

        None: without limit, or not versioned. A transformation is what its input is (KIP-914).
        """
        store = self.store(name)
        if store in self.topics:
            topic = self.topics[store]
            return topic.versioned, topic.history_retention if topic.versioned else None
        retention = self.views[store].history_retention
        return retention is not None, retention

    def store(self, name: str) -> str:
        """The topic or view in whose store Kafka Streams looks a row of a table up: a transformation keeps none."""
        while name in self.views and not self.views[name].stored and self.views[name].suppress is None:
            name = self.views[name].first
        return name

    def kafka_topic(self, name: str) -> str:
        """The name in Kafka of a topic of the contract, or the pattern of names."""
        topic = self.topics[name]
        return topic.pattern or topic.topic or name

    def entry(self, kafka: str) -> str | None:
        """The name in the contract of a topic of Kafka, None of one that it does not name."""
        names = (name for name in self.topics if self.kafka_topic(name) == kafka or self.topics[name].matches(kafka))
        return next(names, None)

    def expectations(self, table: str) -> tuple[Expectation, ...]:
        """The gates of a topic's table or of a view."""
        return (self.topics.get(table) or self.views[table]).expect
