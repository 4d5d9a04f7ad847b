"""Rewriting rows of a small table without Spark, as an UPDATE or DELETE of Spark's does it in seconds."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
from deltalake import DeltaTable

from hindcast.store import arrow_reader, files
from hindcast.store.files import FileChange

Rewriter = Callable[[pa.Table], pa.Table]
"""Returns what the rows of a file become, which have all columns but the partition's; what it got, if they stay
as they are.
"""


def rewrite_small_table(delta_table: DeltaTable, rewrite: Rewriter) -> FileChange | None:
    """Write what the rows of a table become; return the files that change. None if the table is large.

    The table has no deletion vectors.
    """
    listed = files.list_files(delta_table)
    if sum(file.size for file in listed) > files.SMALL_BYTES:
        return None
    touched, parts = [], []
    for file in listed:
        before = arrow_reader.read_rows(delta_table, [file.path]).read_all()
        if (after := rewrite(before)) is not before:
            touched.append(file)
            parts.append((file.belief, after))
    return FileChange(list(files.write_files(delta_table, files.combine_parts(parts))), touched)
