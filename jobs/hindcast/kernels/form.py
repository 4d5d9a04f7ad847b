"""What a kernel does, as its tasks are told it: plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, NamedTuple

import pyarrow as pa

from hindcast.contracts.shapes import PERIODS

"""The type of moments in files."""


class Span(NamedTuple):
    """A slice of time, from `start` to before `end`; None: unbounded."""

    start: datetime | None = None
    end: datetime | None = None


@dataclass(frozen=True)
class Side:
    """An input: a version of a Delta table, the columns of the key it is met by, and those that are taken of it.

    `pin`: the known-at that it is read at; None for what is believed now.
    """

    uri: str
    version: int
    kind: Literal["events", "versions"]
    key: tuple[str, ...]
    columns: tuple[str, ...]
    pin: datetime | None

    @property
    def periods(self) -> tuple[str, ...]:
        """The columns that say when a row is true."""
        return PERIODS[self.kind]


@dataclass(frozen=True)
class Form:
    """An operator, its inputs, and what it writes.

    `whole`: a key is null if one of its columns is, not only if all are. Null meets nothing and is no group; where
    tables are joined on their keys it is a key like any other. `inner`: an event without a version gives no row.
    `columns`: of each column that is taken as it is, which input's which one. `measures`: of the others the aggregate
    function and its argument, None where it counts rows. `types`: the columns of the files.
    """

    operator: Literal["stream_table", "table_table", "of_table"]
    sides: tuple[Side, ...]
    whole: bool
    inner: bool
    columns: Mapping[str, tuple[int, str]]
    measures: Mapping[str, tuple[str, str | None]]
    types: pa.Schema
    uri: str
    kind: Literal["events", "versions"]
    known_at: datetime
