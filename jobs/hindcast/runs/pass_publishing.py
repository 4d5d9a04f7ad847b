"""Publishing what a pass changes: files that nobody sees yet, the gates of all dates, and one commit for each table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from hindcast.bitemporal.intervals import to_micros
from hindcast.contract.bound import BoundContract
from hindcast.engine.pass_tables import NEVER, STORED
from hindcast.engine.sweeps import FOREVER
from hindcast.plan.plans import Plan
from hindcast.quality import gate_results, gates_by_date
from hindcast.quality.gates_by_date import DateCounts
from hindcast.runs.derive_pass import TableChange
from hindcast.store import commit_notes, commits, delta_log, delta_rs_writer, file_listing, files, table_columns, tables
from hindcast.store.commit_notes import TableNote
from hindcast.store.files import DataFile
from hindcast.store.tables import ARROW_TIMESTAMP, Table


class StagedPass(NamedTuple):
    """What a pass changes in a table: the `files` with its new rows, which no commit has made visible yet; the rows
    that the table had and that it closes (`close`, as `delta_rs_writer.commit_history` takes them); and the notes of
    its runs, of which some are `committed`.
    """

    table: Table
    files: tuple[DataFile, ...]
    close: pa.Table
    notes: Sequence[TableNote]
    committed: Sequence[TableNote]


def stage_change(change: TableChange, plans: Sequence[Plan]) -> StagedPass:
    """Write the rows that a pass opens in a table to files, those of each belief in the order of their starts."""
    delta_table = DeltaTable(change.table.path)
    written = tuple(files.write_files(delta_table, _list_parts(change, plans, delta_table)))
    return StagedPass(change.table, written, _list_closed(change, plans), change.notes, change.committed_notes)


def discard_files(staged: StagedPass) -> None:
    """Remove the files of a pass that is not published."""
    filesystem = delta_log.open_filesystem(DeltaTable(staged.table.path))
    for file in staged.files:
        filesystem.delete_file(file.path)


def _list_closed(change: TableChange, plans: Sequence[Plan]) -> pa.Table:
    """Return the rows to close that the table had, by their starts."""
    columns = list(dict.fromkeys((*change.table.closing_columns, tables.period_columns(change.table)[0])))
    closed = change.closed_rows
    close = closed.rows.select(columns).append_column("systemTo", _list_moments(plans).take(pa.array(closed.closed)))
    return close.take(pa.array(np.argsort(closed.start, kind="stable")))


def _list_parts(
    change: TableChange, plans: Sequence[Plan], delta_table: DeltaTable
) -> Iterator[tuple[str | None, pa.Table]]:
    """Yield the new rows as `files.write_files` takes them."""
    history, schema = change.history, pa.schema(delta_table.schema().to_arrow())
    schema = pa.schema([field for field in schema if field.name != "_belief"])
    rows, moments = history.rows.combine_chunks(), _list_moments(plans)
    is_new, is_closed = history.opened != STORED, history.closed != NEVER
    is_open = ~is_closed & ((history.end == FOREVER) if change.table.kind == "versions" else False)
    for belief, mask in (("open", is_open), ("past", ~is_closed & ~is_open), ("superseded", is_closed)):
        places = np.flatnonzero(mask & is_new)
        places = places[np.argsort(history.start[places], kind="stable")]
        for first in range(0, len(places), files.ROWS_PER_FILE):
            own = places[first : first + files.ROWS_PER_FILE]
            ends = pa.array(history.closed[own], mask=~is_closed[own])
            part = rows.take(pa.array(own)).append_column("systemFrom", moments.take(pa.array(history.opened[own])))
            part = part.append_column("systemTo", moments.take(ends))
            yield from ((belief, one) for _, one in files.split_rows(part, schema))


def _list_moments(plans: Sequence[Plan]) -> pa.Array:
    return pa.array([to_micros(plan.known_at) for plan in plans]).cast(ARROW_TIMESTAMP)


class DateGates(NamedTuple):
    """What the gates of a table count, by gate and date."""

    staged: StagedPass
    counts: Sequence[Mapping[datetime, DateCounts]]


def count_gates(spark: SparkSession, contract: BoundContract, staged: StagedPass) -> DateGates:
    """Ask the gates of a table about the rows that each date opens."""
    table = staged.table
    expected = contract.expectations(table.name)
    if not expected or not staged.files:
        return DateGates(staged, [{} for _ in expected])
    found = DeltaTable(table.path)
    paths = [file.path for file in staged.files]
    rows = file_listing.load_files(spark, found, table_columns.spark_schema(found), paths).drop("systemTo", "_belief")
    return DateGates(staged, [gates_by_date.count_by_date(rows, contract, table.name, gate) for gate in expected])


def append_results(contract: BoundContract, plans: Sequence[Plan], asked: Sequence[DateGates]) -> None:
    """Append the results of the gates of all tables for all dates, in one commit, unless that was done before."""
    if gate_results.has_results(contract.warehouse, contract.pipeline, plans[0].run, plans[-1].run):
        return
    results = []
    for gates in asked:
        name, expected = gates.staged.table.name, contract.expectations(gates.staged.table.name)
        for plan, note in zip(plans, gates.staged.notes, strict=True):
            if note.changed_rows:
                found = (
                    gates_by_date.describe_passed(number, gate, counts.get(plan.known_at))
                    for number, (gate, counts) in enumerate(zip(expected, gates.counts, strict=True))
                )
                results += [(plan.run, name, result) for result in found]
    gate_results.append_all_results(contract.warehouse, contract.pipeline, results)


def commit_change(spark: SparkSession, staged: StagedPass, plans: Sequence[Plan], after: int) -> None:
    """Commit what a pass changes in a table under the number of its last run, with the notes of all, once.

    Also if it changes nothing: that the table has the number of a pass says that it needs no more of it.
    """
    if staged.close.num_rows:
        commits.enable_deletion_vectors(spark, staged.table)
    last, notes = plans[-1].run, [note.as_json() for note in staged.committed]
    note = commit_notes.join_notes(last, notes)
    delta_rs_writer.commit_history(staged.files, staged.close, staged.table, last, note, after)
