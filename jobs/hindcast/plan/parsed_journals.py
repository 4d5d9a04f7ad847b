"""The journals that this process has read last, as long as they do not change; bounded by the memory that they take."""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock
from typing import NamedTuple

from deltalake import DeltaTable

from hindcast.plan.journal_rows import LargeJournalError
from hindcast.plan.runs import Run
from hindcast.store.tables import Table

MAX_KEPT = 1 << 30
"""Roughly the most bytes of memory of all journals that are kept; the last one is kept if it alone takes more."""

MAX_MEMORY = 8 << 30
"""Roughly the most bytes of memory of one journal."""

MAX_PAGE_MEMORY = 2 << 30
"""The same in Airflow's API server, which reads the journals of all pipelines. Hourly runs of three topics, with three
partitions each, take 70 MB a year; of ten topics with twelve partitions each, 500 MB.
"""


class ParsedJournal(NamedTuple):
    """What was read of a journal: the table as it was, its version, and `journal.read_planned_runs`.

    `size`: roughly the bytes of memory that it takes. `refusal`: why it was not read.
    """

    delta_table: DeltaTable
    version: int
    runs: list[Run]
    unplanned: list[int]
    size: int
    refusal: LargeJournalError | None = None


class ParsedJournals:
    """The journals by their paths; those used last are kept."""

    def __init__(self) -> None:
        self.most = MAX_MEMORY
        self._lock = Lock()
        self._kept: OrderedDict[str, ParsedJournal] = OrderedDict()

    def find(self, delta_table: DeltaTable) -> ParsedJournal | None:
        """Return what was read of a table at its present version; None if it was not, or is no longer kept."""
        with self._lock:
            known = self._kept.get(delta_table.table_uri)
            if known is None or known.delta_table is not delta_table or known.version != delta_table.version():
                return None
            self._kept.move_to_end(delta_table.table_uri)
            return known

    def keep(self, journal: ParsedJournal) -> None:
        """Keep a journal, and drop those that were used longest ago if all together take too much."""
        with self._lock:
            self._kept.pop(journal.delta_table.table_uri, None)
            self._kept[journal.delta_table.table_uri] = journal
            while len(self._kept) > 1 and sum(kept.size for kept in self._kept.values()) > MAX_KEPT:
                self._kept.popitem(last=False)

    def clear(self) -> None:
        """Forget all journals."""
        with self._lock:
            self._kept.clear()

    def refuse_excess(self, table: Table, size: int) -> None:
        """Raise LargeJournalError for one that takes too much memory."""
        if size > self.most:
            raise LargeJournalError(
                f"the journal takes more than {self.most >> 20:,} MiB of memory, so it is not read here",
                where=table.path,
                fix=f"hindcast runs {table.pipeline} reads larger ones; if no run wrote so much, RESTORE the table",
            )
