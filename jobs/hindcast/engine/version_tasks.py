"""The tasks that write the first rows of a topic's table: from records, by key, to files, by time.

A first task has all records of some keys and derives their versions. If there are several, each hands over the versions
of each time slice as one value (Arrow's stream format), so that Spark need not look at rows to bring them together; a
second task has all versions that begin in a slice and writes them in the order of time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from hindcast.common.spark_workers import map_in_workers
from hindcast.contract import Shape
from hindcast.contract.shapes import PERIODS
from hindcast.engine import integer_encoding, slice_reader, task, version_increments
from hindcast.engine.increment_rows import read_moments
from hindcast.engine.spec import SLICE, VersionIncrement

_START = PERIODS["versions"][0]


def write_versions(
    form: VersionIncrement, shape: Shape, records: DataFrame, parts: int, cuts: Sequence[int]
) -> DataFrame:
    """Return the reports (`task.REPORT_SCHEMA`) of files with the versions of flat records, divided among tasks.

    `cuts`: where time slices begin (`time_slices.find_cuts`); a single task has none. An action on it fails with
    RefusalError if a task's part is too large.
    """
    by_key = records.repartition(parts, *(F.col(f"`{column}`") for column in shape.key))
    if parts == 1:
        return map_in_workers(by_key, partial(_write_versions, form), task.REPORT_SCHEMA)
    by_slice = map_in_workers(by_key, partial(_cut_versions, form, cuts), f"{SLICE} int, rows binary")
    # Of a few numbers some have the same hash: with more partitions than slices they are rarely in one.
    return map_in_workers(by_slice.repartition(4 * parts, SLICE), partial(_write_slices, form), task.REPORT_SCHEMA)


def _derive_versions(form: VersionIncrement, given: Iterator[pa.RecordBatch]) -> pa.Table | None:
    """Return the versions of the records that a task is given, in the order of their starts; None if there are none."""
    if (records := task.collect_rows(given, form.output)) is None:
        return None
    (numbers,), _ = integer_encoding.encode_keys([records], [form.view.key], whole=None)
    return _sort_by_start(version_increments.derive_versions(form, records, numbers))


def _sort_by_start(versions: pa.Table) -> pa.Table:
    return versions.take(pa.array(np.argsort(read_moments(versions, _START), kind="stable")))


def _write_versions(form: VersionIncrement, given: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Write the versions of all records to files, and report these, for Spark's mapInArrow."""
    with task.refuse_too_large():
        if (versions := _derive_versions(form, given)) is not None:
            yield task.report_files(form.output, versions)


def _cut_versions(
    form: VersionIncrement, cuts: Sequence[int], given: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Yield the versions of some keys, those of a slice in one value or a few, for Spark's mapInArrow."""
    with task.refuse_too_large():
        if (versions := _derive_versions(form, given)) is None:
            return
        places = np.searchsorted(read_moments(versions, _START), cuts)
        ends = [*places.tolist(), versions.num_rows]
        for number, (start, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
            for rows in _split_rows(versions.slice(start, end - start)):
                yield pa.record_batch([pa.array([number], pa.int32()), pa.array([_format_rows(rows)])], [SLICE, "rows"])


_BYTES_PER_VALUE = 32 << 20


def _split_rows(rows: pa.Table) -> Iterator[pa.Table]:
    """Yield rows in parts of about so many bytes."""
    count = max(rows.num_rows * _BYTES_PER_VALUE // max(rows.nbytes, 1), 1)
    yield from (rows.slice(start, count) for start in range(0, rows.num_rows, count))


def _format_rows(rows: pa.Table) -> bytes:
    """Return rows in Arrow's stream format."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    value: bytes = sink.getvalue().to_pybytes()
    return value


def _write_slices(form: VersionIncrement, given: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Write the versions of some slices to files, and report these, for Spark's mapInArrow."""
    slices: dict[int, list[bytes]] = {}
    with task.refuse_too_large():
        for batch in given:
            for number, value in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                slices.setdefault(number, []).append(value)
        for number in sorted(slices):
            batches = (batch for value in slices.pop(number) for batch in pa.ipc.open_stream(value))
            limited = list(slice_reader.limit_batches(batches, form.output.uri))
            yield task.report_files(form.output, _sort_by_start(pa.Table.from_batches(limited)))
