"""The tasks that write the first rows of a topic's table: from records, by key, to files, by time.

A first task has all records of some keys and derives their versions. If there are several, each hands over the versions
of each time slice as one value (Arrow's stream format) or a few, so that Spark need not look at rows to bring them
together; a second task has all versions that begin in a slice and writes them in the order of time. In the same way the
tasks that unpack records divide them by key. Records that are rows of Spark it divides itself: they would go through
Python once more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial, reduce

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from hindcast.common.spark_workers import map_in_workers
from hindcast.contract.shapes import PERIODS
from hindcast.engine import integer_encoding, row_exchange, slice_reader, task, version_increments, version_ties
from hindcast.engine.increment_rows import read_moments
from hindcast.engine.spec import SLICE, VersionIncrement
from hindcast.engine.version_ties import TiesOfKeys
from hindcast.store.task_rows import TaskRows, map_rows

_START = PERIODS["versions"][0]


def write_versions(
    form: VersionIncrement, records: DataFrame | Sequence[TaskRows], parts: int, cuts: Sequence[int]
) -> DataFrame:
    """Return the reports (`task.REPORT_SCHEMA`) of files with the versions of flat records, divided among tasks.

    `cuts`: where time slices begin (`time_slices.find_cuts`); a single task has none. An action on it fails with
    RefusalError if a task's part is too large.
    """
    if isinstance(records, DataFrame):
        by_key = records.repartition(parts, *(F.col(f"`{column}`") for column in form.view.key))
    else:
        divide = partial(_divide_records, form.view.key, parts)
        divided = [map_rows(rows, divide, row_exchange.SCHEMA) for rows in records]
        by_key = reduce(DataFrame.union, divided).repartitionById(parts, row_exchange.PART)
    if parts == 1:
        return map_in_workers(by_key, partial(_write_versions, form), task.REPORT_SCHEMA)
    by_slice = map_in_workers(by_key, partial(_cut_versions, form, cuts), f"{SLICE} int, rows binary, ties string")
    return map_in_workers(by_slice.repartitionById(parts, SLICE), partial(_write_slices, form), task.REPORT_SCHEMA)


def _divide_records(key: Sequence[str], parts: int, given: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield records by the part that their key is in, for Spark's mapInArrow."""
    with task.refuse_too_large():
        yield from row_exchange.divide_rows(row_exchange.gather_batches(given), key, parts, whole=None)


def _derive_versions(form: VersionIncrement, given: Iterator[pa.RecordBatch]) -> tuple[pa.Table, TiesOfKeys] | None:
    """Return the versions of the records that a task is given, in the order of their starts, and the records' ties.

    None if there are no records. They are rows, or values with rows.
    """
    if (records := task.collect_rows(row_exchange.open_parts(given), form.output)) is None:
        return None
    (numbers,), _ = integer_encoding.encode_keys([records], [form.view.key], whole=None)
    in_order = version_increments.sort_records(records, numbers)
    ties = version_ties.count_ties(form, in_order)
    versions = version_increments.derive_versions(form, in_order, by_start=True)
    return versions.select([name for name in versions.column_names if name in form.output.types.names]), ties


def _sort_by_start(versions: pa.Table) -> pa.Table:
    return versions.take(pa.array(np.argsort(read_moments(versions, _START), kind="stable")))


def _write_versions(form: VersionIncrement, given: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Write the versions of all records to files, and report these, for Spark's mapInArrow."""
    with task.refuse_too_large():
        if (derived := _derive_versions(form, given)) is not None:
            versions, ties = derived
            yield task.report_files(form.output, versions)
            yield task.report_ties([ties.as_text()])


def _cut_versions(
    form: VersionIncrement, cuts: Sequence[int], given: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Yield the versions of some keys, those of a slice in one value or a few, for Spark's mapInArrow."""
    with task.refuse_too_large():
        if (derived := _derive_versions(form, given)) is None:
            return
        versions, ties = derived
        own = [pa.array([0], pa.int32()), pa.nulls(1, pa.binary()), pa.array([ties.as_text()])]
        yield pa.record_batch(own, _HANDED_OVER)
        places = np.searchsorted(read_moments(versions, _START), cuts).tolist()
        for numbers, values in row_exchange.batch_values(row_exchange.pack_groups(versions, places)):
            yield pa.record_batch([numbers, values, pa.nulls(len(values), pa.string())], _HANDED_OVER)
    _release_memory()


_HANDED_OVER = [SLICE, "rows", "ties"]
"""The columns of rows for the task of a slice: versions, or the ties that it is to report."""


def _write_slices(form: VersionIncrement, given: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Write the versions of some slices to files, and report these, for Spark's mapInArrow."""
    slices: dict[int, list[pa.Buffer]] = {}
    with task.refuse_too_large():
        for batch in given:
            for number, value in zip(batch.column(SLICE).to_pylist(), batch.column("rows"), strict=True):
                if value.is_valid:
                    slices.setdefault(number, []).append(value.as_buffer())
            yield task.report_ties(batch.column("ties").drop_null().to_pylist())
        for number in sorted(slices):
            limited = list(slice_reader.limit_batches(row_exchange.open_values(slices.pop(number)), form.output.uri))
            yield task.report_files(form.output, _sort_by_start(pa.Table.from_batches(limited)))
    _release_memory()


def _release_memory() -> None:
    """Give back what a task no longer needs: its worker stays, and what comes next in a step needs less."""
    pa.default_memory_pool().release_unused()
