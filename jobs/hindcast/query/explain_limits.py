"""Limit what explanations take of the API server: their time, how many run at once, the values that they look up.

Whoever may read a pipeline asks for them; whoever writes its contract wrote the expressions (row_expressions.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from threading import Event, Thread

import duckdb
from deltalake import DeltaTable

from hindcast.common.column_values import ColumnValue
from hindcast.query.cut_values import MAX_CHARACTERS, is_cut
from hindcast.query.turns import TurnError, Turns
from hindcast.store import duckdb_reader, parquet_footers

MAX_EXPLANATIONS = 4
"""How many pipelines explain a row at the same time."""
MAX_SECONDS = 2.0
"""How long an engine may run, and an explanation may wait for its turn."""


class NotExplainedError(Exception):
    """Why a page explains no row, in words without values of the row."""


class EngineLimitError(NotExplainedError):
    """An engine ran longer than it may."""


@contextmanager
def limit_explanations(pipeline: str) -> Iterator[None]:
    """Wait for a turn to explain a row of a pipeline, which has one at a time; raise NotExplainedError if others take
    too long.
    """
    with ExitStack() as turn:
        try:
            turn.enter_context(_TURNS.take(pipeline, MAX_SECONDS))
        except TurnError:
            raise NotExplainedError("too many rows are being explained at this moment; try again") from None
        yield


_TURNS = Turns(MAX_EXPLANATIONS)


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
            with parquet_footers.limit_looks(limit):
                yield engine
        except (duckdb.InterruptException, parquet_footers.SlowLookError):
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
