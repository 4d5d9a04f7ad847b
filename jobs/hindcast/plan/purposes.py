"""What a run is for: it replays topics, or does one of four things instead of that.

Each purpose has the form in which the journal stores it (`as_json`, `from_json`): one field of the plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, TypeAlias

from hindcast.common.json_values import JsonObject, JsonValue, StoredObject
from hindcast.contract import Contract


@dataclass(frozen=True)
class Replay:
    """Ingest records and derive tables; with `only`, of one topic, input or view, and of all below it."""

    only: str | None = None

    def as_json(self) -> JsonObject:
        """Return the plan's field for it; none for a run about all tables."""
        return {"only": self.only} if self.only else {}


@dataclass(frozen=True)
class ReleasedKeys:
    """Keys of one table (JSON), released by a person who looked at their held changes at the moment `until`."""

    until: datetime
    keys: tuple[str, ...]
    by: str | None


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
        return {
            "releases": {
                name: {"until": released.until.isoformat(), "keys": list(released.keys), "by": released.by}
                for name, released in self.tables.items()
            }
        }


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
        return cls(document["topic"], document["sha256"], tuple(document.get("formerly", ())))


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
    """Return the purpose of a plan from its form in the journal."""
    if (releases := plan.get("releases")) is not None:
        return Release(
            {
                name: ReleasedKeys(datetime.fromisoformat(of["until"]), tuple(of["keys"]), of.get("by"))
                for name, of in releases.items()
            }
        )
    if requeue := plan.get("requeues"):
        where = requeue.get("partition"), tuple(requeue.get("offsets", ()))
        return Requeue(tuple(requeue["topics"]), requeue.get("of"), requeue.get("reason"), *where)
    if erasure := plan.get("forgets"):
        return Erasure.from_json(erasure)
    if upgrade := plan.get("upgrade"):
        rows = upgrade.get("from"), upgrade.get("version")
        return Upgrade(upgrade["table"], upgrade["mode"], upgrade["step"], *rows, tuple(upgrade.get("without", ())))
    return Replay(plan.get("only"))
