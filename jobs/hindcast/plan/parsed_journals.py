"""The journals that this process has read, bounded by their memory; of one that grew only its new files are read.

Reading may be limited in time: whoever reads a journal next then goes on where it was left.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from threading import Lock
from typing import NamedTuple, TypeAlias

from deltalake import DeltaTable

from hindcast.common.json_values import StoredObject
from hindcast.plan.entries import JournalEntry
from hindcast.plan.journal_rows import (
    EntryRow,
    LargeJournalError,
    UnreadJournalError,
    count_parts,
    load_files,
    open_files,
    parse_entry,
)
from hindcast.plan.plans import Plan
from hindcast.plan.runs import Run, StoredReport, parse_outcome, parse_plan
from hindcast.store.tables import Table

COLUMNS = ("run", "entry", "at", "detail", "sequence")
"""The columns of a journal that are read: a plan has the others too."""

MAX_KEPT = 1 << 30
"""Roughly the most bytes of memory of all journals that are kept; the last one is kept if it alone takes more."""

MAX_MEMORY = 8 << 30
"""Roughly the most bytes of memory of one journal."""

Watch: TypeAlias = Callable[[str], AbstractContextManager[Callable[[], None]]]
"""Begins to read the journal of a pipeline; what it gives is called after each entry, and raises UnreadJournalError
once that has taken too long.
"""


@dataclass(frozen=True)
class JournalLimits:
    """How much memory one journal, and all that are kept, may take, and how long reading.

    `wait_seconds`: how long to wait while another thread reads the same journal; -1 for ever.
    """

    memory: int = MAX_MEMORY
    kept: int = MAX_KEPT
    watch: Watch = lambda _: nullcontext(lambda: None)
    wait_seconds: float = -1


class ParsedJournal(NamedTuple):
    """What was read of a journal: the table as it was, its version, and `journal.read_planned_runs`.

    `refusal`: why it was not read.
    """

    delta_table: DeltaTable
    version: int
    runs: list[Run]
    unplanned: list[int]
    refusal: LargeJournalError | None = None


class ParsedJournals:
    """The journals by their paths."""

    def __init__(self) -> None:
        self.limits = JournalLimits()
        self._lock = Lock()
        self._kept: dict[str, _JournalReader] = {}

    def read(self, table: Table, delta_table: DeltaTable) -> ParsedJournal:
        """Return what a journal has, and keep it.

        Raise UnreadJournalError if there was no time to read it to its end, and for a malformed entry what parsing it
        raises.
        """
        path, limits = delta_table.table_uri, self.limits
        with self._lock:
            reader = self._kept.setdefault(path, _JournalReader())
        if (found := reader.find(delta_table)) is not None:
            return found
        with limits.watch(table.pipeline) as check:
            if not reader.lock.acquire(timeout=limits.wait_seconds):
                found_text = "the journal was not read: another page is reading it at this moment"
                raise UnreadJournalError(found_text, where=table.path, fix="load the page again")
            try:
                found = reader.read(table, delta_table, limits.memory, check)
            except UnreadJournalError:
                raise
            except BaseException:
                reader.begin_anew()  # others may wait for it
                self._drop(path, reader)
                raise
            finally:
                reader.lock.release()
                self._drop_excess(reader, limits.kept)
        return found

    def clear(self) -> None:
        """Forget all journals."""
        with self._lock:
            self._kept.clear()

    def recover_after_fork(self) -> None:
        """Forget, in a forked process, the journals that threads were reading which it has not got."""
        self._lock = Lock()
        self._kept = {path: reader for path, reader in self._kept.items() if not reader.lock.locked()}

    def _drop(self, path: str, reader: _JournalReader) -> None:
        with self._lock:
            if self._kept.get(path) is reader:
                del self._kept[path]

    def _drop_excess(self, last: _JournalReader, most: int) -> None:
        """Drop the largest journals, but not the last one, while all together take too much."""
        with self._lock:
            others = sorted((it.size, path) for path, it in self._kept.items() if it is not last)
            total = last.size + sum(size for size, _ in others)
            while others and total > most:
                size, path = others.pop()
                total -= size
                del self._kept[path]


class _JournalReader:
    """Reads one journal, and keeps what it has read. Whoever calls `read` has the `lock`."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.begin_anew()

    def begin_anew(self) -> None:
        """Forget what was read."""
        self._found: ParsedJournal | None = None
        self.size, self._length = 0, 0
        self._target: tuple[DeltaTable, int] | None = None
        self._paths: set[str] = set()
        self._waiting: deque[Iterator[EntryRow]] = deque()
        self._entries: list[_StoredEntry] = []
        self._runs = _RunsOfEntries()

    def find(self, delta_table: DeltaTable) -> ParsedJournal | None:
        """Return what was read of a table at its present version; None if it was not, or not to its end."""
        found = self._found
        is_current = found and found.delta_table is delta_table and found.version == delta_table.version()
        return found if is_current else None

    def read(self, table: Table, delta_table: DeltaTable, most: int, check: Callable[[], None]) -> ParsedJournal:
        """Return what the journal has; read what was not read yet. LargeJournalError is returned as a `refusal`."""
        if (found := self.find(delta_table)) is not None:  # another thread has read it meanwhile
            return found
        version = delta_table.version()
        try:
            if self._target is None or self._target[0] is not delta_table or self._target[1] != version:
                self._add_files(table, delta_table)
                self._target = delta_table, version
            while self._waiting:
                for row in self._waiting[0]:
                    self._add_entry(row, table.pipeline)
                    _refuse_excess(table, self.size, most)
                    check()
                self._waiting.popleft()
        except LargeJournalError as error:
            self.begin_anew()
            self._found = ParsedJournal(delta_table, version, [], [], error.with_traceback(None))
            return self._found
        self._runs = self._runs.add(self._entries)
        self._found = ParsedJournal(delta_table, version, self._runs.list_runs(), self._runs.list_unplanned())
        return self._found

    def _add_files(self, table: Table, delta_table: DeltaTable) -> None:
        """Let the files of a version be read that were not; all of them if others were replaced."""
        dataset = open_files(table, delta_table)
        files = {fragment.path: fragment for fragment in dataset.get_fragments()}
        if not self._paths <= files.keys():
            self.begin_anew()
        new = [files[path] for path in files if path not in self._paths]
        self._waiting.append(load_files(table, dataset, new, COLUMNS, self._length))
        self._paths.update(files)

    def _add_entry(self, row: EntryRow, pipeline: str) -> None:
        self._entries.append(entry := _StoredEntry.from_row(row, pipeline))
        self.size += entry.size
        self._length += len(row["detail"])


def _refuse_excess(table: Table, size: int, most: int) -> None:
    """Raise LargeJournalError for a journal that takes too much memory."""
    if size > most:
        raise LargeJournalError(
            f"the journal takes more than {most >> 20:,} MiB of memory, so it is not read here",
            where=table.path,
            fix=f"hindcast runs {table.pipeline} reads larger ones; if no run wrote so much, RESTORE the table",
        )


class _StoredEntry(NamedTuple):
    """An entry with its detail, and roughly the bytes of memory that it takes. A report is parsed where it is used.

    `detail`: of a planned run its plan; an empty object if that is malformed, or of another run.
    """

    entry: JournalEntry
    detail: Plan | StoredObject | StoredReport
    size: int

    @classmethod
    def from_row(cls, row: EntryRow, pipeline: str) -> _StoredEntry:
        """Return the entry in a row of the journal of a pipeline."""
        entry, text = parse_entry(row), row["detail"]
        if entry.state == "completed":
            report = StoredReport.from_text(text)
            return cls(entry, report, len(report.compressed) + _ENTRY_BYTES)
        detail = json.loads(text)
        size = len(text) + _BYTES * count_parts(text) + _ENTRY_BYTES
        if entry.state == "planned":
            return cls(entry, parse_plan(detail, pipeline, entry.run) or {}, size)
        return cls(entry, detail, size)


_BYTES, _ENTRY_BYTES = 64, 1_000
"""Roughly the bytes of memory that a value of JSON takes besides its text, and an entry besides its detail."""


class _RunsOfEntries:
    """The runs that entries are of, as they stand after the last one. Later entries leave other runs as they are."""

    def __init__(self) -> None:
        self._runs: dict[int, Run] = {}
        self._unplanned: dict[int, None] = {}
        self._count = 0
        self._last: JournalEntry | None = None

    def add(self, entries: list[_StoredEntry]) -> _RunsOfEntries:
        """Return the runs of all entries, of which these runs have the first `_count`."""
        new = sorted(entries[self._count :], key=lambda stored: stored.entry.order)
        if new and self._last is not None and new[0].entry.order < self._last.order:
            return _RunsOfEntries().add(entries)
        for entry in new:
            self._add_entry(entry)
        self._count = len(entries)
        return self

    def _add_entry(self, stored: _StoredEntry) -> None:
        entry, detail, _ = stored
        number, self._last = entry.run, entry
        if isinstance(detail, Plan):
            self._runs[number] = Run(detail)
        elif number in self._runs:
            run = self._runs[number]
            self._runs[number] = replace(run, outcome=parse_outcome(entry.state, detail, run.stop_error))
        else:
            self._unplanned[number] = None

    def list_runs(self) -> list[Run]:
        """Return the runs that have a plan, oldest first."""
        return list(self._runs.values())

    def list_unplanned(self) -> list[int]:
        """Return the numbers of those without one."""
        return list(self._unplanned)
