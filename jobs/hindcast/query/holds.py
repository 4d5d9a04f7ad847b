"""What explanations say of a key's change that a gate holds back: its rows stay as they were before."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple, Protocol

from hindcast.common.column_values import ColumnValue, Row


class Hold(NamedTuple):
    """A change that is held back since the run `began`.

    `known_at`: when the inputs were known that the current rows were made of; None if that run is not in the journal.
    """

    began: int
    since: int
    known_at: datetime | None


class HoldFinder(Protocol):
    """Finds what is held back of one table; `quality.held_keys` has the one that reads the table of failing rows."""

    def find_of_key(self, key: Sequence[ColumnValue]) -> Hold | None:
        """Return the change of a key, or of single rows of it, that is held back; None if there is none."""

    def find_of_row(self, row: Row) -> Hold | None:
        """Return the change that is held back and would replace a row, or other rows of its key; None if none would."""
