"""What a comparison has found: its counts, and examples of each kind of difference."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from hindcast.common.json_values import JsonObject, JsonValue
from hindcast.ops.compare.rules import DifferenceRule


@dataclass(frozen=True)
class DifferenceCount:
    """How many differences of a kind (differences.py) are likely due to which rule."""

    kind: str
    count: int
    rule: DifferenceRule

    def as_json(self) -> dict[str, JsonValue]:
        """Return the form in the report."""
        rule = {"rule": self.rule.name, "likely": self.rule.likely, "whatToDo": self.rule.fix}
        return {"kind": self.kind, "count": self.count, **rule}


class ExampleRecord(NamedTuple):
    """A record of one side, as it is shown: without sensitive values. `value`: None for a tombstone."""

    partition: int
    offset: int
    timestamp: datetime
    value: JsonObject | None

    def as_json(self) -> dict[str, JsonValue]:
        """Return the form in the report."""
        return self._asdict() | {"timestamp": self.timestamp.isoformat()}


class CauseRecord(NamedTuple):
    """The place of the record that a replayed one was emitted for."""

    topic: str
    partition: int
    offset: int


@dataclass(frozen=True)
class DifferenceExample:
    """A difference, as it is shown: its likely `rule`, its key and window, and the record of each side that has one."""

    kind: str
    rule: str
    key: JsonObject | None
    window_start: datetime | None
    window_end: datetime | None
    topic: ExampleRecord | None
    replayed: ExampleRecord | None
    cause: CauseRecord | None

    def as_json(self) -> dict[str, JsonValue]:
        """Return the form in the report."""
        return {
            "kind": self.kind,
            "rule": self.rule,
            "key": self.key,
            "windowStart": self.window_start.isoformat() if self.window_start else None,
            "windowEnd": self.window_end.isoformat() if self.window_end else None,
            "topic": self.topic.as_json() if self.topic else None,
            "replayed": self.replayed.as_json() if self.replayed else None,
            "cause": self.cause._asdict() if self.cause else None,
        }


@dataclass(frozen=True)
class Comparison:
    """The result of a comparison.

    `differences`: how many of each kind are likely due to which rule. `examples`: the first few of each kind.
    `not_compared`: fields of the topic's values for which the view has no column.
    """

    view: str
    topic: str
    known_at: datetime
    epoch: int
    held: int
    replayed: int
    equal: int
    differences: list[DifferenceCount]
    examples: list[DifferenceExample]
    not_compared: tuple[str, ...]

    def count(self, kind: str) -> int:
        """Return how many differences of a kind there are."""
        return sum(difference.count for difference in self.differences if difference.kind == kind)
