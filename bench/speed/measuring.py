"""Measuring: contestants in turn, round by round, and no time counts whose result differs from Hindcast's."""

from __future__ import annotations

import gc
import shutil
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar

from bench.speed import engines
from bench.speed.names import OURS

T = TypeVar("T")


@dataclass(frozen=True)
class Contestant:
    """One way to do an operation. `run` writes the operation's output into a folder that is not there yet.

    `output`: where the output lies instead, if not there. `before`: what is done each time before it is timed.
    """

    name: str
    run: Callable[[Path], object]
    output: Path | None = None
    before: Callable[[], object] | None = None


@dataclass(frozen=True)
class Operation:
    """What is measured: `columns` are SQL expressions over an output, which have to be equal in all of them.

    `absent`: peers that are not measured, and why.
    """

    code: str
    data: str
    told: str
    columns: Sequence[str]
    contestants: Sequence[Contestant]
    absent: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Measured:
    """The seconds of a contestant by round, or why it has none. `share`: of the input that it was given, 1 for all."""

    operation: str
    data: str
    peer: str
    seconds: list[float] = field(default_factory=list)
    why: str | None = None
    writes: str = ""
    share: float = 1

    @property
    def median(self) -> float | None:
        return statistics.median(self.seconds) if self.seconds else None


def measure(operation: Operation, rounds: int, folder: Path, say: Callable[[str], None] = print) -> list[Measured]:
    """Every contestant once a round, each round in another order; Hindcast goes first in the first one.

    Its result there is what all later results are held against: count, and a checksum of `columns` that no order of
    rows changes. A contestant that fails, or whose result differs, is left out from then on, and loses its times.
    """
    found = {it.name: Measured(operation.code, operation.data, it.name) for it in operation.contestants}
    right: engines.Content | None = None
    for number in range(rounds):
        turn = number % len(operation.contestants)
        for it in [*operation.contestants[turn:], *operation.contestants[:turn]]:
            measured, output = found[it.name], folder / "output"
            if measured.why is not None:
                continue
            shutil.rmtree(output, ignore_errors=True)
            if it.output is not None:
                shutil.rmtree(it.output, ignore_errors=True)
            try:
                took = _timed(it, output)
                content = engines.content(it.output or output, operation.columns)
            except Exception as error:  # a peer may fail as it likes
                measured.why, measured.seconds = f"failed: {_first_line(error)}", []
                if it.name == OURS:
                    raise
            else:
                right = right or content
                measured.writes = content.format
                if content.same_as(right):
                    measured.seconds.append(took)
                else:
                    measured.why, measured.seconds = f"another result: {content.differs(right)}", []
            told = f"{took:7.2f} s" if measured.why is None else measured.why
            say(f"{operation.code} {operation.data:8} round {number + 1}  {it.name:34} {told}")
    shutil.rmtree(folder / "output", ignore_errors=True)
    absent = [Measured(operation.code, operation.data, name, why=why) for name, why in operation.absent.items()]
    return [*found.values(), *absent]


class Watch(Protocol):
    """Does a part of an operation, and may look at it meanwhile; `of` says what it is."""

    def __call__(self, of: str, work: Callable[[], T], /) -> T: ...


def unwatched(of: str, work: Callable[[], T]) -> T:  # noqa: ARG001  # as `Watch` has it
    """Only does it."""
    return work()


def _timed(it: Contestant, output: Path) -> float:
    if it.before is not None:
        it.before()
    gc.collect()
    begun = time.monotonic()
    it.run(output)
    return time.monotonic() - begun


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:200]}"
