"""Reading the contract files of a folder in bounded time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush, nlargest
from pathlib import Path

from hindcast.common.errors import ContractError
from hindcast.contract import bounds
from hindcast.contract.load import SlowContractError
from hindcast.contract.model import Contract


class UnreadContractError(ContractError):
    """A file is not read, as its folder has too many, or others have taken all of the folder's time."""


class FolderReader:
    """Reads the contracts of a folder in bounded time: those that take long cost the others little.

    Small files are read first, empty ones last. Each may take a second (`bounds.FIRST_SECONDS`); those that were too
    slow are read again once all have been, the largest first, with what is left of the folder's time, from which their
    first reading is not taken. So a contract that takes less than a second loads beside eight that would take for ever,
    and one that takes less than a tenth beside a hundred. The whole takes at most 23 s of a processor (slow ones
    `bounds.SLOW_SECONDS`, others `bounds.FOLDER_SECONDS` with their DAGs, and a second more each), and ends before the
    `deadline` (of time.monotonic). Further files are refused unread, and all beyond `bounds.FOLDER_FILES`.
    """

    def __init__(
        self,
        files: Sequence[Path],
        read_one: Callable[[Path, float], Contract | ContractError],
        share: float = 1.0,
        deadline: float = math.inf,
    ) -> None:
        self.sizes = {path: _find_size(path) for path in files}
        self.read_one = read_one
        self.slow_seconds, self.folder_seconds = bounds.SLOW_SECONDS * share, bounds.FOLDER_SECONDS * share
        self.all_seconds = self.slow_seconds + self.folder_seconds + 2 * bounds.FIRST_SECONDS
        self.deadline = deadline
        self.results: dict[Path, Contract | ContractError] = {}
        self.taken: dict[Path, float] = {}
        self.allowed: dict[Path, float] = {}
        self.spent = self.spent_on_slow = self.for_dags = 0.0
        """The time of all readings with `for_dags`, that of DAGs; that of the first readings that were too slow."""

    def read(self) -> dict[Path, Contract | ContractError]:
        """Return what each file holds, in the given order; an error that names the budget if it was not enough."""
        by_size = sorted(self.sizes, key=lambda path: (self.sizes[path] == 0, self.sizes[path], path))
        for path in by_size[: bounds.FOLDER_FILES]:
            if self._find_left() > 0:
                self._read_file(path, self._find_first_limit())
        self._read_slow_again()
        slowest = nlargest(2, self.taken, key=lambda path: self.taken[path])
        found = f"is not read: its folder has {len(by_size):,} files, of which the {bounds.FOLDER_FILES:,} smallest are"
        for path in by_size[bounds.FOLDER_FILES :]:
            self.results[path] = UnreadContractError(found, where=f"{path}:1", fix=_NUMBER_FIX)
        return {path: self._explain(path, slowest) for path in self.sizes}

    def _find_left(self) -> float:
        """Return the seconds until no file is read any more."""
        return min(self.all_seconds - self.spent, self.deadline - time.monotonic() - self.for_dags)

    def _find_first_limit(self) -> float:
        """Return the seconds that the next file may take when it is read for the first time."""
        late = self.spent_on_slow >= self.slow_seconds or self.spent - self.spent_on_slow >= self.folder_seconds
        return min(bounds.SECONDS, bounds.LAST_SECONDS if late else bounds.FIRST_SECONDS)

    def _read_slow_again(self) -> None:
        """Read slow files again; those that were given only a moment come first: they may need little more."""

        def rank(path: Path) -> tuple[float, int, Path]:
            return self.allowed[path], -self.sizes[path], path

        slow = [rank(path) for path, result in self.results.items() if isinstance(result, SlowContractError)]
        heapify(slow)
        while slow:
            path = heappop(slow)[-1]
            if seconds := self._find_next_limit(path):
                self._read_file(path, seconds)
                if isinstance(self.results[path], SlowContractError):
                    heappush(slow, rank(path))

    def _find_next_limit(self, path: Path) -> float | None:
        """Return the seconds that a slow file may take when it is read again; None if no more than it has taken."""
        more = bounds.FIRST_SECONDS if self.allowed[path] < bounds.FIRST_SECONDS else bounds.SECONDS
        left = min(self.folder_seconds - (self.spent - self.spent_on_slow), self._find_left())
        seconds = min(more, bounds.SECONDS, left)
        return seconds if seconds > max(self.allowed[path], self.taken[path]) else None

    def _read_file(self, path: Path, seconds: float) -> None:
        begun = time.thread_time()
        result = self.results[path] = self.read_one(path, seconds)
        tables = count_tables(result) if isinstance(result, Contract) else 1  # the task of the DAG that stands in
        taken = time.thread_time() - begun + tables * bounds.TABLE_SECONDS
        self.for_dags += tables * bounds.TABLE_SECONDS
        if isinstance(result, SlowContractError) and path not in self.allowed:
            self.spent_on_slow += taken
        self.spent += taken
        self.taken[path] = self.taken.get(path, 0.0) + taken
        self.allowed[path] = seconds

    def _explain(self, path: Path, slowest: Sequence[Path]) -> Contract | ContractError:
        """Return what a file holds; an error that names the budget if others left too little of it."""
        others = [other for other in slowest if other != path]
        result = self.results.get(path)
        if result is not None and (
            not isinstance(result, SlowContractError) or self.allowed[path] >= bounds.SECONDS or not others
        ):
            return result
        taken = (
            f"the folder's other contracts took {self.spent - self.taken.get(path, 0.0):.0f} s, "
            f"{others[0].name} alone {self.taken[others[0]]:.0f} s"
        )
        if result is None:
            return UnreadContractError(f"is not read: no time is left: {taken}", where=f"{path}:1", fix=_TIME_FIX)
        found = f"takes more than {self.allowed[path]:.2g} s of a processor to read, and no more is left: {taken}"
        return SlowContractError(found, where=f"{path}:1", fix=_TIME_FIX)


_NUMBER_FIX = (
    "remove files that are not contracts, or move some contracts to another folder, with a DAG file of its own"
)
_TIME_FIX = "simplify the contracts that take long (split them, use fewer expressions), or move some to another folder"


def count_tables(contract: Contract) -> int:
    """Return how many topics, inputs and views a contract has."""
    return len(contract.topics) + len(contract.inputs) + len(contract.views)


def _find_size(path: Path) -> int:
    """Return the size of a file; 0 if it cannot be examined, which is an error that takes no time."""
    try:
        return path.stat().st_size
    except OSError:
        return 0
