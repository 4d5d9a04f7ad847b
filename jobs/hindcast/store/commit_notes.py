"""The notes of commits: what a run says in the commit to a table, for later runs and for the report.

Of a table a run says it in a `TableNote`: `publish.py` fills it, for a kernel `engine/staged_files.py`.

A note is JSON in `userMetadata` of Delta's log. Every note has the number of its `run`. Others may write there, too:
each `from_json` raises one of `NOTE_ERRORS` for what is not a note of its kind. The transaction identifiers that a
commit has besides are in commit_ids.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple

from hindcast.common.json_values import JsonObject, JsonValue, StoredObject


def parse_note(commit: StoredObject) -> StoredObject:
    """Return the note of a commit in Delta's log; none for the text that somebody else wrote there."""
    try:
        note = json.loads(commit.get("userMetadata") or "{}")
    except (RecursionError, ValueError):
        return {}
    return note if isinstance(note, dict) else {}


def join_notes(last: int, notes: Sequence[JsonObject]) -> JsonObject:
    """Return the note of a commit for several runs: the `last` of them, and the notes of those that have one."""
    return {"run": last, "runs": [*notes]}


def split_note(note: StoredObject) -> Sequence[StoredObject]:
    """Return the note of each run that a commit is for, the last one first."""
    runs = note.get("runs")
    return [it for it in reversed(runs) if isinstance(it, dict)] if isinstance(runs, list) else [note]


def _require_fields(note: StoredObject, *names: str) -> None:
    """Raise ValueError for a note with none of the fields that every note of its kind has one of."""
    if not note.keys() & {*names}:
        raise ValueError(f"none of {', '.join(names)}")


def _read_counts(note: StoredObject, *names: str) -> dict[str, int]:
    """Return the counts in a note, 0 for those that are missing; raise ValueError for what is not a count."""
    counts = {name: note.get(name, 0) for name in names}
    if not all(type(n) is int and n >= 0 for n in counts.values()):
        raise ValueError(f"not counts: {counts}")
    return counts


def _read_mapping(note: StoredObject, name: str) -> StoredObject:
    """Return a field of a note that is an object, an empty one if it is missing; raise TypeError for another value."""
    if not isinstance(value := note.get(name) or {}, dict):
        raise TypeError(f"{name} is not an object")
    return value


@dataclass(frozen=True)
class LeftOut:
    """How many input rows an aggregate has left out in all runs, by kind: no_key, no_value, too_late.

    `stream_times`: of a windowed aggregate, the latest event by partition (ISO 8601), by which windows close.
    """

    counts: Mapping[str, int]
    stream_times: Mapping[str, str] | None = None

    def __add__(self, new: LeftOut) -> LeftOut:
        """Return these counts together with those of `new` rows."""
        counts = {kind: n + self.counts.get(kind, 0) for kind, n in new.counts.items()}
        if new.stream_times is None:
            return LeftOut(counts)
        times = dict(self.stream_times or {})
        for partition, reached in new.stream_times.items():
            times[partition] = max(reached, times.get(partition, reached))
        return LeftOut(counts, times)

    def says_the_same_as(self, other: LeftOut) -> bool:
        """Return whether both have the same counts, where one that is missing is 0, and the same stream times."""
        alike = all(self.counts.get(k, 0) == other.counts.get(k, 0) for k in {*self.counts, *other.counts})
        return alike and (self.stream_times or {}) == (other.stream_times or {})

    def as_json(self) -> JsonObject:
        """Return its fields in a note."""
        times: JsonObject = {} if self.stream_times is None else {"streamTimes": self.stream_times}
        return {"leftOut": self.counts, **times}

    @classmethod
    def from_json(cls, document: StoredObject) -> LeftOut | None:
        """Return what a note or a report has of it; None if it has nothing."""
        if "leftOut" not in document:
            return None
        left_out, times = _read_mapping(document, "leftOut"), document.get("streamTimes")
        return cls(left_out, times if times is None else _read_mapping(document, "streamTimes"))


def format_stream_times(latest: Mapping[str, int]) -> dict[str, str]:
    """Return the latest events by partition, in microseconds since 1970, as `LeftOut.stream_times`."""
    moments = {partition: datetime(1970, 1, 1) + timedelta(microseconds=at) for partition, at in latest.items()}  # noqa: DTZ001
    return {partition: f"{at.isoformat(timespec='microseconds')}Z" for partition, at in moments.items()}


BY_SPARK = "+spark"
"""What stands behind the operator of a kernel if Spark evaluated the view's expressions (`TableNote.kernel`)."""

NOTHING_LEFT_OUT = LeftOut({})


@dataclass(frozen=True)
class TieCounts:
    """How many records with the key and timestamp of another were `scattered` over partitions, `lost` against it, or
    `replaced` it; and the (partition, offset) of one that lost and of the one that it lost to.
    """

    scattered: int = 0
    lost: int = 0
    replaced: int = 0
    loser: tuple[int, int] | None = None
    winner: tuple[int, int] | None = None

    @property
    def counts(self) -> dict[str, int]:
        """The counts that are not zero, by name."""
        counts = {"scattered": self.scattered, "lost": self.lost, "replaced": self.replaced}
        return {what: n for what, n in counts.items() if n}

    def as_json(self) -> JsonObject:
        """Return its field in a note: without zeros."""
        places = {"loser": self.loser, "winner": self.winner}
        return {**self.counts, **{side: place for side, place in places.items() if place}}

    @classmethod
    def from_json(cls, document: StoredObject) -> TieCounts:
        """Return the counts that a note has."""
        loser, winner = ((of[0], of[1]) if (of := document.get(side)) else None for side in ("loser", "winner"))
        counts = _read_counts(document, "scattered", "lost", "replaced")
        return cls(**counts, loser=loser, winner=winner)


AGES = {
    "under an hour": timedelta(hours=1),
    "under a day": timedelta(days=1),
    "under a week": timedelta(weeks=1),
    "under 30 days": timedelta(days=30),
    "older": None,
}
"""The ages by which past answers that were corrected are counted, and how old these are at most."""


@dataclass(frozen=True)
class TableNote:
    """The note of the change that a run published in a table.

    `opened` and `closed`: rows; `corrected`: of the closed ones, past answers; `ages`: their number by age.
    `kernel`: the operator, if a kernel wrote the rows, with `BY_SPARK` if Spark evaluated the expressions.
    """

    run: int
    opened: int = 0
    closed: int = 0
    corrected: int = 0
    ages: Mapping[str, int] = field(default_factory=dict)
    ties: TieCounts | None = None
    left_out: LeftOut | None = None
    kernel: str | None = None

    @property
    def changed_rows(self) -> int:
        """The number of rows opened and closed."""
        return self.opened + self.closed

    def as_json(self) -> JsonObject:
        """Return the note as Delta's log has it."""
        counts: JsonObject = {
            "opened": self.opened,
            "closed": self.closed,
            "corrected": self.corrected,
            "ages": self.ages,
        }
        ties: JsonObject = {"ties": self.ties.as_json()} if self.ties is not None else {}
        left_out = self.left_out.as_json() if self.left_out is not None else {}
        return {"run": self.run, **counts, **ties, **left_out, **({"kernel": self.kernel} if self.kernel else {})}

    @classmethod
    def from_json(cls, note: StoredObject) -> TableNote:
        """Return the note that Delta's log has."""
        _require_fields(note, "opened", "closed")
        counts = _read_counts(note, "opened", "closed", "corrected")
        ties = TieCounts.from_json(_read_mapping(note, "ties")) if "ties" in note else None
        ages = _read_mapping(note, "ages")
        return cls(
            note["run"], **counts, ages=ages, ties=ties, left_out=LeftOut.from_json(note), kernel=note.get("kernel")
        )


class IdlePartition(NamedTuple):
    """A partition of which no run has ingested anything: its start offset, if `from` is reached, and where runs are.

    `member`: for a pattern, its topic and partition in Kafka, and the topic's id.
    """

    partition: int
    start_offset: int | None
    end: int
    member: tuple[str, int, str] | None = None

    def as_json(self) -> JsonValue:
        """Return its form in a note."""
        return [self.partition, self.start_offset, self.end, *(self.member or ())]

    @classmethod
    def from_json(cls, form: JsonValue) -> IdlePartition:
        """Return the partition from its form in a note."""
        match form:
            case [int(p), None | int() as start_offset, int(end), str(topic), int(partition), str(topic_id)]:
                return cls(p, start_offset, end, (topic, partition, topic_id))
            case [int(p), None | int() as start_offset, int(end)]:
                return cls(p, start_offset, end)
            case _:
                raise ValueError(f"not a partition: {form}")


@dataclass(frozen=True)
class LogNote:
    """The note of a commit to a topic's log.

    `valid_time`: the expression that dated the records. Of one commit among several (`chunk`, from 1), also how many
    `records` it has, and how many of them are malformed; `refused`: how many have another fate than accepted. `idle`:
    the partitions of which the log has nothing. `ahead`: how many have an arrival that the run could not know of.
    `rehearses`: when they arrived, of a rehearsed run, as its plan has that (`plan.purposes.Replay`).
    """

    run: int
    run_id: str
    refused: int
    valid_time: str | None
    records: int = 0
    malformed: int = 0
    chunk: int | None = None
    idle: tuple[IdlePartition, ...] = ()
    ahead: int = 0
    rehearses: JsonObject = field(default_factory=dict)

    def as_json(self) -> JsonObject:
        """Return the note as Delta's log has it."""
        run: JsonObject = {"run": self.run, "runId": self.run_id}
        idle: JsonObject = {"idle": [it.as_json() for it in self.idle]} if self.idle else {}
        ahead: JsonObject = {"ahead": self.ahead} if self.ahead else {}
        purpose: JsonObject = {"rehearses": self.rehearses} if self.rehearses else {}
        fields: JsonObject = {**run, "refused": self.refused, "validTime": self.valid_time, **idle, **ahead, **purpose}
        if self.chunk is None:
            return fields
        return {**fields, "records": self.records, "malformed": self.malformed, "chunk": self.chunk}

    @classmethod
    def from_json(cls, note: StoredObject) -> LogNote:
        """Return the note that Delta's log has."""
        _require_fields(note, "runId")
        counts = _read_counts(note, "refused", "records", "malformed", "ahead")
        idle = tuple(IdlePartition.from_json(form) for form in note.get("idle") or ())
        rehearses, valid_time = _read_mapping(note, "rehearses"), note.get("validTime")
        chunk, purpose = note.get("chunk"), dict(rehearses)
        return cls(
            note["run"], note["runId"], valid_time=valid_time, chunk=chunk, idle=idle, rehearses=purpose, **counts
        )


@dataclass(frozen=True)
class FatesNote:
    """The note of a commit of fates that a run decided again: how many records are `refused` by it.

    Of a requeue, `requeued`: by their new fate, the records that were malformed; `still`: why others still are.
    """

    run: int
    refused: int = 0
    requeued: Mapping[str, int] | None = None
    still: JsonObject = field(default_factory=dict)

    def as_json(self) -> JsonObject:
        """Return the note as Delta's log has it."""
        requeue: JsonObject = {} if self.requeued is None else {"requeued": self.requeued, "still": self.still}
        return {"run": self.run, "refused": self.refused, **requeue}

    @classmethod
    def from_json(cls, note: StoredObject) -> FatesNote:
        """Return the note that Delta's log has."""
        _require_fields(note, "refused", "requeued")
        requeued = None if note.get("requeued") is None else _read_mapping(note, "requeued")
        refused = _read_counts(note, "refused")["refused"]
        return cls(note["run"], refused, requeued, dict(_read_mapping(note, "still")))


@dataclass(frozen=True)
class EmissionNote:
    """The note of a commit to the emitted log of a kafka view, and to its state.

    `known_at`: ISO 8601. `epoch` counts the times that the view began from scratch, the last time under the
    `definition` (a hash). `upto`: with `wait`, the time (ms since 1970) before which everything is processed; else -1.
    `buckets`: of the state. `waits_for`: with `wait`, the topic and partition that holds the view back. `sources`: what
    the view has read: by topic its number of partitions, by kafka view its epoch; None if an older program wrote it.
    """

    run: int
    known_at: str
    epoch: int
    definition: str
    upto: int = -1
    buckets: int = 1
    waits_for: tuple[str, int] | None = None
    sources: Mapping[str, int] | None = None

    def as_json(self) -> JsonObject:
        """Return the note as Delta's log has it."""
        epoch: JsonObject = {"epoch": self.epoch, "definition": self.definition, "upto": self.upto}
        state: JsonObject = {"buckets": self.buckets, "waitsFor": self.waits_for, "sources": self.sources}
        return {"run": self.run, "knownAt": self.known_at, **epoch, **state}

    @classmethod
    def from_json(cls, note: StoredObject) -> EmissionNote:
        """Return the note that Delta's log has."""
        _require_fields(note, "epoch")
        _read_counts(note, "epoch", "buckets")
        waits_for = tuple(note["waitsFor"]) if note.get("waitsFor") else None
        common = note["run"], note.get("knownAt", ""), note["epoch"], note.get("definition", ""), note.get("upto", -1)
        return cls(*common, note.get("buckets", 1), waits_for, note.get("sources"))


def parse_own_note(note: StoredObject) -> JsonObject:
    """Return a note as Delta's log has it; raise ValueError for one of no kind."""
    for kind in (TableNote, LogNote, FatesNote, EmissionNote):
        with suppress(*NOTE_ERRORS):
            kind.from_json(note)
            return dict(note)
    raise ValueError("not a note of a run")


NOTE_ERRORS = (AttributeError, KeyError, TypeError, ValueError)
"""What `from_json` raises for JSON that somebody else wrote."""
