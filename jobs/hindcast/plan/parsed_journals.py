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
from hindcast.store.table_cache import LogState, list_excess, read_log_state
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
    """What was read of a journal: of which state of its table, and `journal.read_planned_runs`.

    `refusal`: why it was not read.
    """

    state: _TableState
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
        path, limits, state = delta_table.table_uri, self.limits, _read_state(table, delta_table)
        with self._lock:
            reader = self._kept.setdefault(path, _JournalReader())
        if (found := reader.find(state)) is not None:
            return found
        with limits.watch(table.pipeline) as check:
            if not reader.lock.acquire(timeout=limits.wait_seconds):
                found_text = "the journal was not read: another page is reading it at this moment"
                raise UnreadJournalError(found_text, where=table.path, fix="load the page again")
            try:
                found = reader.read(table, delta_table, state, limits.memory, check)
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
            others = {path: it.size for path, it in self._kept.items() if it is not last}
            for path in list_excess(others, most - last.size):
                del self._kept[path]


_TableState: TypeAlias = tuple[int, LogState | DeltaTable]
"""The version of a table, and the state of its log; in an object store the table as it was opened."""


def _read_state(table: Table, delta_table: DeltaTable) -> _TableState:
    version = delta_table.version()
    return version, read_log_state(table.path, version) or delta_table


class _JournalReader:
    """Reads one journal, and keeps what it has read. Whoever calls `read` has the `lock`."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.begin_anew()

    def begin_anew(self) -> None:
        """Forget what was read."""
        self._found: ParsedJournal | None = None
        self.size, self._length = 0, 0
        self._target: _TableState | None = None
        self._paths: set[str] = set()
        self._waiting: deque[Iterator[EntryRow]] = deque()
        self._entries: list[_StoredEntry] = []
        self._runs = _RunsOfEntries()

    def find(self, state: _TableState) -> ParsedJournal | None:
        """Return what was read of a table in a state; None if it was not, or not to its end."""
        return self._found if self._found is not None and self._found.state == state else None

    def read(
        self, table: Table, delta_table: DeltaTable, state: _TableState, most: int, check: Callable[[], None]
    ) -> ParsedJournal:
        """Return what the journal has; read what was not read yet. LargeJournalError is returned as a `refusal`."""
        if (found := self.find(state)) is not None:  # another thread has read it meanwhile
            return found
        try:
            if self._target != state:
                self._add_files(table, delta_table)
                self._target = state
            while self._waiting:
                for row in self._waiting[0]:
                    self._add_entry(row, table.pipeline)
                    _refuse_excess(table, self.size, most)
                    check()
                self._waiting.popleft()
        except LargeJournalError as error:
            self.begin_anew()
            self._found = ParsedJournal(state, [], [], error.with_traceback(None))
            return self._found
        self._runs = self._runs.add(self._entries)
        self._found = ParsedJournal(state, self._runs.list_runs(), self._runs.list_unplanned())
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
