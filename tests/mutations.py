"""Tries deliberate wrong readings of the operators, each of which a vector, a generated history or a test must catch.

`NUMBA_DISABLE_JIT=1 python tests/mutations.py [WORDS ...]` applies each in mutations/*.yaml (or those with one of
WORDS) to the real code (one statement of a module, misreadings.py) and prints what caught it. Loops are not compiled:
a mutation would need machine code of its own. Those that name operations are held to their
vectors, then to generated histories; the others to the vectors of the `kafka` reading and to tests (trials.py). It
exits with 1 if a wrong reading survives.
"""

from __future__ import annotations

import ast
import importlib
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import ModuleType
from unittest import mock

from pyspark.sql import SparkSession

import histories
import kernels
import trials
from hindcast.bitemporal import fates
from hindcast.common.session import ROWS_PER_SLICE, override_conf
from hindcast_conformance import Vector, load_vectors, run_vectors
from misreadings import Misreading, full_name, load_misreadings, misread

VECTORS = Path(__file__).parent / "conformance"
_USED_BY = {
    "bitemporal.aggregates": ("bitemporal.windows",),
    "bitemporal.affected_periods": ("bitemporal.incremental", "hindcast_conformance.relations"),
}
"""Modules that hold functions of another by name."""


def main() -> int:
    """Try every mutation and print what caught it."""
    chosen = [it for it in load_misreadings() if any(words in it.reading for words in sys.argv[1:] or [""])]
    tried = [*_by_trials(chosen), *_of_corrected(chosen)]
    print(f"{sum(tried)} of {len(tried)} wrong readings caught")
    return 0 if all(tried) else 1


def _by_trials(misreadings: list[Misreading]) -> Iterator[bool]:
    """Whether each is caught. Before Spark is started: each is tried in a copy of this process."""
    chosen = [wrong for wrong in misreadings if not wrong.operations]
    failed = trials.caught(None) if chosen else None
    if failed is not None:
        raise SystemExit(f"fails with nothing misread: {failed}")
    for number, wrong in enumerate(chosen, 1):
        yield _told(number, wrong, trials.caught(wrong))


def _of_corrected(misreadings: list[Misreading]) -> Iterator[bool]:
    chosen = [wrong for wrong in misreadings if wrong.operations]
    if not chosen:
        return
    from hindcast.common.session import open_session

    spark = open_session("hindcast-mutate", small=True)
    spark.conf.set("spark.sql.maxPlanStringLength", "1000")
    vectors = [vector for vector in load_vectors(VECTORS) if vector.semantics == "corrected"]
    cases = histories.histories(1, 1_500)
    random.Random(1).shuffle(vectors)  # noqa: S311 - any order does
    for number, mutation in enumerate(chosen, 1):
        yield _told(number, mutation, _caught(spark, mutation, vectors, cases))


def _told(number: int, mutation: Misreading, caught: str | None) -> bool:
    print(f"{number:3} {mutation.module:21} {mutation.reading:72} {caught or 'SURVIVED'}", flush=True)
    return caught is not None


def _caught(spark: SparkSession, mutation: Misreading, vectors: list[Vector], cases: list[Vector]) -> str | None:
    """The first vector or history that fails under a mutation."""
    sliced = {ROWS_PER_SLICE: "1"} if mutation.reading.startswith("sliced") else {}
    length = 2 if mutation.reading.startswith("blocks") else fates.OFFSETS_PER_BLOCK
    blocks = mock.patch.object(fates, "OFFSETS_PER_BLOCK", length)
    by_kernels = kernels.instead() if mutation.module.startswith("engine.") else nullcontext()
    with _applied(mutation), override_conf(spark, sliced), blocks, by_kernels:
        for kind, candidates in (("vector", vectors), ("history", cases)):
            concerned = [one for one in candidates if one.operation["type"] in mutation.operations][:150]
            for outcome in run_vectors(spark, concerned):
                if outcome.state != "passed":
                    how = " (does not run)" if outcome.state == "declined" else ""
                    return f"{kind} {outcome.vector.name}{how}"
    return None


@contextmanager
def _applied(mutation: Misreading) -> Iterator[None]:
    module = importlib.import_module(full_name(mutation.module))
    text = Path(str(module.__file__)).read_text(encoding="utf-8")
    users = [importlib.import_module(full_name(name)) for name in _USED_BY.get(mutation.module, ())]
    try:
        _load(module, misread(mutation))
        _reload(users)
        yield
    finally:
        _load(module, text)
        _reload(users)


def _reload(modules: list[ModuleType]) -> None:
    for module in modules:
        _load(module, Path(str(module.__file__)).read_text(encoding="utf-8"))


def _load(module: ModuleType, text: str | ast.Module) -> None:
    exec(compile(text, str(module.__file__), "exec"), vars(module))  # noqa: S102 - that is what mutating is


if __name__ == "__main__":
    sys.exit(main())
