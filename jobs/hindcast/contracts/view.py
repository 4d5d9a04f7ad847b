"""A view as it is written: joins, windows, aggregates. `views` and `kafka` say what can be wrong with one."""

from __future__ import annotations

from datetime import timedelta
from typing import Literal

from pydantic import Field

from hindcast.contracts.expectation import HOLD, Gate, Hold, gate_schema
from hindcast.contracts.fields import Looked, Sensitive, Widen
from hindcast.contracts.types import ColumnName, Duration, Flag, Model, Name


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
    widen: Widen = "refuse"
    sensitive: Sensitive = False
    hold: Hold = Field("key", description=HOLD)
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
