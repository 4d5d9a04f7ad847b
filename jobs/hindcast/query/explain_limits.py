"""Limit what explanations take of the API server: their time, how many run at once, the values that they look up.

Whoever may read a pipeline asks for them; whoever writes its contract wrote the expressions (row_expressions.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from threading import BoundedSemaphore, Event, Thread

import duckdb
from deltalake import DeltaTable

from hindcast.common.column_values import ColumnValue
from hindcast.query.cut_values import MAX_CHARACTERS, is_cut
from hindcast.store import duckdb_reader

MAX_EXPLANATIONS = 2
MAX_SECONDS = 2.0
"""How long an engine may run, and an explanation may wait for its turn."""


class NotExplainedError(Exception):
    """Why a page explains no row, in words without values of the row."""


class EngineLimitError(NotExplainedError):
    """An engine ran longer than it may."""


@contextmanager
def limit_explanations() -> Iterator[None]:
    """Wait for a turn to explain a row; raise NotExplainedError if others take too long."""
    if not _TURNS.acquire(timeout=MAX_SECONDS):
        raise NotExplainedError("too many rows are being explained at this moment; try again")
    try:
        yield
    finally:
        _TURNS.release()


_TURNS = BoundedSemaphore(MAX_EXPLANATIONS)


@contextmanager
def open_limited_engine(
    delta_table: DeltaTable, seconds: float | None = None, memory: int | None = None
) -> Iterator[duckdb.DuckDBPyConnection]:
    """Return an engine that is interrupted after `seconds` (default: `MAX_SECONDS`); raise EngineLimitError then.

    It can open only the files of the table. `memory` as for `duckdb_reader.open_engine`.
    """
    limit, ended = MAX_SECONDS if seconds is None else seconds, Event()

    def watch() -> None:
        wait = limit
        while not ended.wait(wait):  # an engine that computes nothing at the moment is not interrupted
            engine.interrupt()
            wait = 0.1

    with duckdb_reader.open_engine(delta_table, memory) as engine:
        watcher = Thread(target=watch, daemon=True)
        watcher.start()
        try:
            yield engine
        except duckdb.InterruptException:
            raise EngineLimitError(f"finding its input rows took longer than {limit:g} seconds") from None
        finally:
            ended.set()
            watcher.join()


def refuse_unfit(values: Iterable[ColumnValue]) -> None:
    """Raise NotExplainedError if rows would be looked up by a value that is cut, a list or a struct."""
    for value in values:
        if is_cut(value):
            raise NotExplainedError(f"it does not look up values of more than {MAX_CHARACTERS:,} characters")
        if isinstance(value, list | dict):
            raise NotExplainedError("it does not look up lists and structs")
