"""The models of a view, its join and its window; `view_checks` and `semantics_checks` check them.

A new field that changes no answer goes into `_NOT_DEFINING` or `_UNHASHED` in model.py; after any change
`hindcast schema` writes schemas/contract.schema.json anew.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Literal

from pydantic import Field

from hindcast.contract.expectation import HOLD_DESCRIPTION, Gate, Hold, gate_schema
from hindcast.contract.field_types import LookupKey, Sensitive, Widen
from hindcast.contract.types import ColumnName, ContractModel, Duration, Flag, Name


class Join(ContractModel):
    """The other side of a join: a table for a stream or a table, a stream for a stream."""

    table: Name | None = Field(None, description="The table that is joined.")
    stream: Name | None = Field(None, description="The stream that is joined to a stream, within a window.")
    on: LookupKey = Field(
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
        "their events can still be joined. It changes no corrected answer.",
    )

    @property
    def keys(self) -> tuple[str, ...]:
        """The expressions of `on`, none if it was left out."""
        return (self.on,) if isinstance(self.on, str) else self.on or ()


class Window(ContractModel):
    """The windows of a stream's aggregate: exactly one of tumbling, hopping, sliding, session."""

    tumbling: Duration | None = Field(None, description="Windows of this size, one after the other.")
    hopping: Duration | None = Field(None, description="Windows of this size, one at every `advance`.")
    advance: Duration | None = Field(None, description="How far apart hopping windows start.")
    sliding: Duration | None = Field(None, description="Windows of events that are at most this far apart.")
    session: Duration | None = Field(None, description="Windows that end after this time without an event.")
    grace: Duration = Field(
        "0 ms", validate_default=True, description="How far behind stream time events are still accepted."
    )
    emit: Literal["update", "suppress_until_window_closes", "on_window_close"] = Field(
        "update",
        description="kafka: update: each change of a window comes out at once. suppress_until_window_closes: its last "
        "result, as suppress(untilWindowCloses) emits it. on_window_close: as EmitStrategy.onWindowClose does.",
    )
    store_retention: Duration | None = Field(
        None,
        description="kafka: how far back the window store goes; size + grace, 2 x sliding + grace or gap + grace if "
        "left out.",
    )

    @property
    def least_store_retention(self) -> timedelta:
        """The least and the default retention of the window store in Kafka Streams."""
        length = self.tumbling or self.hopping or self.session or 2 * (self.sliding or timedelta(0))
        return length + self.grace


class View(ContractModel):
    """A table derived from topics and other views: a join, an aggregate, or a transformation of one input."""

    stream: Name | None = Field(None, description="The stream that it starts from: a topic, or a view of events.")
    table: Name | None = Field(None, description="The table that it starts from: a topic, or a view of versions.")
    join: Join | None = Field(None, description="The stream or table that is joined to it.")
    where: str | None = Field(None, description="Spark SQL condition; rows that do not meet it are left out.")
    select: dict[ColumnName, str] | None = Field(
        None,
        description="Columns of the view as Spark SQL expressions, in addition to the key. All columns if left out.",
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
        description="kafka: a record waits until every input partition has gone past its timestamp. Its results "
        "then do not depend on how runs divide the log.",
    )
    history_retention: Duration | None = Field(
        None,
        description="kafka: the result of an aggregate, or of a join of tables, is put in a versioned store with this "
        "history retention; in one of the latest rows alone if left out.",
    )
    suppress: Duration | None = Field(
        None,
        description="kafka: a key's update is held back for this time, and later ones take its place "
        "(suppress(untilTimeLimit)). For a table that is not versioned.",
    )
    keep: Duration | None = Field(
        None, description="How long its history is kept, as for a topic; for ever if left out."
    )
    widen: Widen = "refuse"
    sensitive: Sensitive = False
    hold: Hold = Field("key", description=HOLD_DESCRIPTION)
    expect: tuple[Gate, ...] = Field((), json_schema_extra={"items": gate_schema()})

    @property
    def first_input(self) -> str:
        """The name of the input that it starts from."""
        return self.stream or self.table or ""

    @property
    def second_input(self) -> str | None:
        """The name of the input that is joined."""
        return (self.join.table or self.join.stream) if self.join else None

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of its inputs."""
        return (self.first_input, self.second_input) if self.second_input else (self.first_input,)

    @property
    def has_store(self) -> bool:
        """True if its table has a store of its own; where and select (filter, mapValues) have none."""
        return self.aggregate is not None or self.join is not None
