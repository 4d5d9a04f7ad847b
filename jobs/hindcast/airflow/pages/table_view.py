"""The first rows of a table as it was known at a moment: the time machine shows them where no key is chosen."""

from __future__ import annotations

from functools import partial

import duckdb

from hindcast.bitemporal.predicates import Question
from hindcast.common.python_values import list_rows
from hindcast.contract import Contract
from hindcast.query import read
from hindcast.query.explain_limits import NotExplainedError, limit_explanations, open_limited_engine
from hindcast.query.key_history import RowSample

MAX_ROWS = 50
SECONDS, MEMORY, MAX_BYTES = 2.0, 320 << 20, 8 << 20
"""How long reading rows may take, how many bytes it may take, and how many the rows may have."""


def read_rows(warehouse: str, contract: Contract, name: str, question: Question) -> RowSample | None:
    """Return the first rows of a table that answer a question; None if reading them takes too long, or too much memory.

    Raises what `read.query` raises.
    """
    engine = partial(open_limited_engine, seconds=SECONDS, memory=MEMORY)
    try:
        with limit_explanations(contract.pipeline):
            rows, total = read.read_first_rows(warehouse, contract, name, question, MAX_ROWS, MAX_BYTES, engine)
    except (NotExplainedError, read.LargeRowsError, duckdb.OutOfMemoryException):
        return None
    return RowSample(list_rows(rows), total)
