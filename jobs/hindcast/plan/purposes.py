"""What a run is for: it replays topics, or does one of four things instead of that.

Each purpose has the form in which the journal stores it (`as_json`, `from_json`): one field of the plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, NamedTuple, TypeAlias, get_args

from hindcast.common.json_values import JsonObject, JsonValue, StoredObject
from hindcast.contract import Contract
from hindcast.plan.stored_values import parse_moment, parse_number, parse_optional_text, parse_text


@dataclass(frozen=True)
class ArrivalInterval:
    """The moments [since, until) at which records arrived."""

    since: datetime
    until: datetime

    def as_json(self) -> JsonObject:
        """Return the interval as the journal has it."""
        return {"from": self.since.isoformat(), "to": self.until.isoformat()}

    @classmethod
    def from_json(cls, form: StoredObject) -> ArrivalInterval:
        """Return the interval that the journal has; LookupError, TypeError or ValueError for an odd one."""
        return cls(parse_moment(form["from"]), parse_moment(form["to"]))


@dataclass(frozen=True)
class Replay:
    """Ingest records and derive tables; with `only`, of one topic, input or view, and of all below it.

    A rehearsed run takes the records of an interval of `arrival`, and is known at its end (rehearsals.py). `logs`: the
    pipeline from whose logs it takes them; None: from Kafka.
    """

    only: str | None = None
    arrival: ArrivalInterval | None = None
    logs: str | None = None

    def as_json(self) -> JsonObject:
        """Return the plan's field for it; none for a run about all tables."""
        if self.arrival is not None:
            return {"rehearses": {**self.arrival.as_json(), **({"logs": self.logs} if self.logs else {})}}
        return {"only": self.only} if self.only else {}


@dataclass(frozen=True)
class ReleasedKeys:
    """Keys of one table (JSON), released by a person who looked at their held changes at the moment `until`.

    `at`: when that person answered; None in older plans.
    """

    until: datetime
    keys: tuple[str, ...]
    by: str | None
    at: datetime | None = None

    def as_json(self) -> JsonObject:
        """Return the form in the plan."""
        answered: JsonObject = {"at": self.at.isoformat()} if self.at else {}
        return {"until": self.until.isoformat(), "keys": list(self.keys), "by": self.by, **answered}

    @classmethod
    def from_json(cls, form: StoredObject) -> ReleasedKeys:
        """Return the keys from their form in the plan."""
        at = parse_moment(form["at"]) if form.get("at") is not None else None
        return cls(parse_moment(form["until"]), _parse_list(form["keys"]), parse_optional_text(form.get("by")), at)


class Approval(NamedTuple):
    """Who approved a release (None: nobody was named), and when (None: not known)."""

    by: str | None
    at: datetime | None = None

    def as_json(self) -> JsonObject:
        """Return the form in the report."""
        return {"by": self.by, "at": self.at.isoformat() if self.at else None}

    @classmethod
    def from_json(cls, form: StoredObject) -> Approval:
        """Return the approval from its form in the report."""
        at = form.get("at")
        return cls(parse_optional_text(form.get("by")), None if at is None else parse_moment(at))


@dataclass(frozen=True)
class Release:
    """Publish held changes that a person released, by table. What has changed since that person looked stays held."""

    tables: Mapping[str, ReleasedKeys]

    def is_same_answer(self, other: Mapping[str, ReleasedKeys]) -> bool:
        """Return whether others are the same keys, released by the same person, whenever that was."""
        own, others = ({name: ({*it.keys}, it.by) for name, it in tables.items()} for tables in (self.tables, other))
        return own == others

    def as_json(self) -> JsonObject:
        """Return the plan's field for it."""
        return {"releases": {name: released.as_json() for name, released in self.tables.items()}}


@dataclass(frozen=True)
class Requeue:
    """Decode malformed records of `topics` again: all of them, or those that meet each condition.

    `kafka_topic`: one topic of a pattern; `reason`: a part of the log's reason for refusing a record; `partition` and
    `offsets`: where it is in Kafka.
    """

    topics: tuple[str, ...]
    kafka_topic: str | None = None
    reason: str | None = None
    partition: int | None = None
    offsets: tuple[int, ...] = ()

    def as_json(self) -> JsonObject:
        """Return the plan's field for it."""
        fields: dict[str, JsonValue] = {"topics": self.topics, "of": self.kafka_topic, "reason": self.reason}
        fields |= {"partition": self.partition, "offsets": self.offsets}
        return {"requeues": {name: value for name, value in fields.items() if value not in (None, ())}}


@dataclass(frozen=True)
class Erasure:
    """Forget everything in a topic whose key, or place, has this SHA-256 digest (ops/erase/).

    `formerly`: the other tables that an earlier contract derived from the topic; they lose rows too.
    """

    topic: str
    digest: str
    formerly: tuple[str, ...] = ()

    def removes_rows_of(self, contract: Contract, name: str) -> bool:
        """Return whether rows of a table of a contract can go: it is one of these tables, or made of one."""
        own = {self.topic, *self.formerly}.intersection((*contract.topics, *contract.views))
        return any(name in contract.list_tables_below(table) for table in own)

    def as_json(self) -> JsonObject:
        """Return the plan's field for it."""
        fields: dict[str, JsonValue] = {"topic": self.topic, "sha256": self.digest}
        return {"forgets": fields | ({"formerly": self.formerly} if self.formerly else {})}

    @classmethod
    def from_json(cls, document: StoredObject) -> Erasure:
        """Return the erasure from the plan's field for it."""
        formerly = _parse_list(document.get("formerly", ()))
        return cls(parse_text(document["topic"]), parse_text(document["sha256"]), formerly)


UpgradeMode: TypeAlias = Literal["in-place", "roll-over", "offline"]


@dataclass(frozen=True)
class Upgrade:
    """Convert a topic's table to the current store format (runs/store_migration.py).

    `step`: the run takes the table over (begin) or completes its conversion (end). `from_format`: the format of its
    rows; `version`: the version of a plain table that is adopted, None for a table of Hindcast. `without`: other tables
    that wait for an upgrade of their own; the run skips them and what is below them.
    """

    table: str
    mode: UpgradeMode
    step: Literal["begin", "end"]
    from_format: str | None = None
    version: int | None = None
    without: tuple[str, ...] = ()

    def as_json(self) -> JsonObject:
        """Return the plan's field for it."""
        fields: dict[str, JsonValue] = {"table": self.table, "mode": self.mode, "step": self.step}
        fields |= {"from": self.from_format} if self.from_format is not None else {}
        fields |= {"version": self.version} if self.version is not None else {}
        return {"upgrade": fields | ({"without": self.without} if self.without else {})}


Purpose: TypeAlias = Replay | Release | Requeue | Erasure | Upgrade


def parse_purpose(plan: StoredObject) -> Purpose:
    """Return the purpose of a plan from its form in the journal; TypeError or ValueError for an odd value."""
    if (releases := plan.get("releases")) is not None:
        return Release({name: ReleasedKeys.from_json(form) for name, form in releases.items()})
    if requeue := plan.get("requeues"):
        partition = requeue.get("partition")
        return Requeue(
            _parse_list(requeue["topics"]),
            parse_optional_text(requeue.get("of")),
            parse_optional_text(requeue.get("reason")),
            None if partition is None else parse_number(partition),
            tuple(map(parse_number, requeue.get("offsets", ()))),
        )
    if erasure := plan.get("forgets"):
        return Erasure.from_json(erasure)
    if upgrade := plan.get("upgrade"):
        mode, step, version = upgrade["mode"], upgrade["step"], upgrade.get("version")
        if mode not in get_args(UpgradeMode) or step not in ("begin", "end"):
            raise ValueError("the mode or the step of an upgrade is none of ours")
        return Upgrade(
            parse_text(upgrade["table"]),
            mode,
            step,
            parse_optional_text(upgrade.get("from")),
            None if version is None else parse_number(version),
            _parse_list(upgrade.get("without", ())),
        )
    if rehearsed := plan.get("rehearses"):
        return Replay(None, ArrivalInterval.from_json(rehearsed), parse_optional_text(rehearsed.get("logs")))
    return Replay(parse_optional_text(plan.get("only")))


def _parse_list(texts: JsonValue) -> tuple[str, ...]:
    """Return a list of texts; raise TypeError for another value."""
    if not isinstance(texts, list | tuple):
        raise TypeError(f"a {type(texts).__name__} is not a list")
    return tuple(map(parse_text, texts))
