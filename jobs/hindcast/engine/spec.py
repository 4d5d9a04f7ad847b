"""Kernel specifications: what the tasks of a kernel do, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, NamedTuple

import pyarrow as pa

from hindcast.contract.shapes import PERIODS
from hindcast.engine.arrow_expressions import Expression, Projection


class TimeSlice(NamedTuple):
    """A slice of time, from `start` to before `end`; None: unbounded."""

    start: datetime | None = None
    end: datetime | None = None


@dataclass(frozen=True)
class KernelInput:
    """An input: a version of a Delta table, the key columns by which it is joined, and the columns that are read.

    `as_of`: the system time at which it is read; None for its current rows. `computed`: columns that it does not have,
    as expressions over those that it has; `key` may name some.
    """

    uri: str
    version: int
    kind: Literal["events", "versions", "windows"]
    key: tuple[str, ...]
    columns: tuple[str, ...]
    as_of: datetime | None
    computed: Mapping[str, Expression] = field(default_factory=dict)

    @property
    def periods(self) -> tuple[str, ...]:
        """The columns that say when a row is true."""
        return PERIODS[self.kind]


@dataclass(frozen=True)
class KernelOutput:
    """The table that a kernel writes to: place, kind of its rows, columns of its files; and the rows' known-at."""

    uri: str
    kind: Literal["events", "versions"]
    types: pa.Schema
    known_at: datetime


@dataclass(frozen=True)
class JoinSpec:
    """A join, its inputs, and what it writes.

    `whole`: a key is null if one of its columns is, not only if all are. A null key matches nothing and is not a group;
    if tables are joined on their keys it is a key like any other (None). `how`: which rows of a join without a partner
    it keeps. `columns`: what the view's expressions read: for each name, the number of its input and its name there.
    `projection`: the view's columns over these and the joined rows' `periods`; None if Spark evaluates them
    (spark_projection.py) before the rows are written. `reach`: how many microseconds a right event may be before its
    left one, and after it; of a join of two streams.
    """

    operator: Literal["stream_table", "table_table", "stream_stream"]
    sides: tuple[KernelInput, ...]
    whole: bool | None
    how: Literal["inner", "left", "outer"]
    columns: Mapping[str, tuple[int, str]]
    projection: Projection | None
    output: KernelOutput
    reach: tuple[int, int] = (0, 0)

    @property
    def periods(self) -> tuple[str, ...]:
        """The columns that joined rows have beside those of their inputs: when they are true."""
        return {"stream_table": (), "table_table": PERIODS["versions"], "stream_stream": PERIODS["pairs"]}[
            self.operator
        ]


@dataclass(frozen=True)
class AggregateSpec:
    """An aggregate over valid time, and what it writes.

    Its rows have the columns of the `key` (the group), for each of the `measures` a column with the argument of its
    function (of a count, null for what does not count), validFrom, and validTo if they end. `whole`: a row whose key
    has a null has no group, not only one whose key has nothing but nulls.
    """

    operator: Literal["of_table", "of_stream"]
    key: tuple[str, ...]
    whole: bool
    measures: Mapping[str, str]
    output: KernelOutput


@dataclass(frozen=True)
class MemberSource:
    """The input of an aggregate, and what the aggregate reads of each row, as expressions over the input's columns."""

    side: KernelInput
    projection: Projection


SLICE = "_slice"
"""The column with the number of the slice for whose windows an event was read."""


@dataclass(frozen=True, kw_only=True)
class EventSpec:
    """An aggregate of events in windows or sessions, and what it writes.

    Its rows have the columns of the `key` and the `measures` as `AggregateSpec` has them, and those of the place and
    the timestamp of their events. `whole`: as there. `projection`: these columns over those of the input; None if Spark
    evaluates them. `grace`: in microseconds, as all lengths. `late`: the events that came late, in the order of
    `partition` and `offset` (late_events.py).
    """

    side: KernelInput
    key: tuple[str, ...]
    whole: bool
    measures: Mapping[str, str]
    projection: Projection | None
    grace: int
    late: pa.Table
    output: KernelOutput


@dataclass(frozen=True, kw_only=True)
class WindowSpec(EventSpec):
    """An aggregate in hopping windows. `late` has `first`, the start of the first one that takes the event, or null."""

    size: int
    advance: int
    operator: Literal["in_windows"] = "in_windows"

    @property
    def length(self) -> int:
        """From a window's start to its end, which is no part of it."""
        return self.size

    @property
    def reach(self) -> tuple[int, int]:
        """How long before its start, and after it, the events are that a window depends on."""
        return 0, self.size - 1


@dataclass(frozen=True, kw_only=True)
class SlidingSpec(EventSpec):
    """An aggregate in sliding windows, which end at an event or begin a `tick` of Kafka's clock after one."""

    difference: int
    tick: int = 1000
    operator: Literal["in_windows"] = "in_windows"

    @property
    def length(self) -> int:
        """From a window's start to its end, which is a part of it."""
        return self.difference

    @property
    def reach(self) -> tuple[int, int]:
        """How long before its start, and after it, the events are that a window depends on."""
        return self.tick, self.difference


@dataclass(frozen=True, kw_only=True)
class SessionSpec(EventSpec):
    """An aggregate in sessions. `late` has `reached`, the stream time at which the event came."""

    gap: int
    operator: Literal["in_sessions"] = "in_sessions"

    @property
    def length(self) -> int:
        """How far apart two events of a session are at most."""
        return self.gap

    @property
    def reach(self) -> tuple[int, int]:
        """None: the events of a session are in it."""
        return 0, 0


@dataclass(frozen=True, kw_only=True)
class ViewIncrement:
    """What a run derives again in a view, and compares.

    `sides`: the inputs. `seen`: by input, the known-at at which the view has seen it last. `view`: the view's table.
    `columns`: those of its rows, of which the `identity` tells current rows apart.
    """

    sides: tuple[KernelInput, ...]
    seen: tuple[datetime, ...]
    view: KernelInput
    columns: tuple[str, ...]
    identity: tuple[str, ...]
    output: KernelOutput

    @property
    def unit_columns(self) -> tuple[str, ...]:
        """The columns of a row's key that tell which of the operator's keys it is from; none if they do not."""
        return self.view.key

    @property
    def leaves_rows_out(self) -> bool:
        """Whether the operator is an aggregate, which counts the rows of its input that it leaves out."""
        return False


@dataclass(frozen=True, kw_only=True)
class SelectIncrement(ViewIncrement):
    """An increment of a view that only selects columns and rows of its input.

    `flat`: the columns that the view's expressions read: for each name, the one of the input. `projection`: the view's
    columns over these and its periods.
    """

    flat: Mapping[str, str]
    projection: Projection
    operator: Literal["select"] = "select"
    is_by_arrow: Literal[True] = True


@dataclass(frozen=True, kw_only=True)
class JoinIncrement(ViewIncrement):
    """An increment of a join.

    `unit`: the columns of a row's key, each with the first input's column that it comes from; none of a stream that has
    another key.
    """

    join: JoinSpec
    unit: Mapping[str, str]

    @property
    def unit_columns(self) -> tuple[str, ...]:
        """As `ViewIncrement` has them."""
        return tuple(self.unit)

    @property
    def operator(self) -> str:
        """The join's."""
        return self.join.operator

    @property
    def is_by_arrow(self) -> bool:
        """Whether Arrow evaluates the view's expressions; else Spark does, before rows are compared."""
        return self.join.projection is not None


@dataclass(frozen=True, kw_only=True)
class AggregateIncrement(ViewIncrement):
    """An increment of an aggregate over valid time.

    `projection`: group, arguments and periods over the columns of the input, and in `member` the columns that tell its
    rows of one moment apart.
    """

    aggregate: AggregateSpec
    projection: Projection
    member: tuple[str, ...]

    @property
    def operator(self) -> str:
        """The aggregate's."""
        return self.aggregate.operator

    @property
    def leaves_rows_out(self) -> bool:
        """As `ViewIncrement` has it."""
        return True

    @property
    def is_by_arrow(self) -> bool:
        """Whether Arrow evaluates the view's expressions."""
        return True


@dataclass(frozen=True, kw_only=True)
class WindowIncrement(ViewIncrement):
    """An increment of an aggregate in windows or sessions, whose late events are found on the way.

    `ends`: by partition, the offset behind the last event that the view may have seen.
    """

    ends: Mapping[int, int]
    events: WindowSpec | SlidingSpec | SessionSpec

    @property
    def operator(self) -> str:
        """The aggregate's."""
        return self.events.operator

    @property
    def leaves_rows_out(self) -> bool:
        """As `ViewIncrement` has it."""
        return True

    @property
    def is_by_arrow(self) -> bool:
        """Whether Arrow evaluates the view's expressions."""
        return self.events.projection is not None


@dataclass(frozen=True, kw_only=True)
class VersionIncrement(ViewIncrement):
    """An increment of a topic's versions. `ttl`: how long one lasts at most, in microseconds."""

    ttl: int | None
    operator: Literal["of_topic"] = "of_topic"
