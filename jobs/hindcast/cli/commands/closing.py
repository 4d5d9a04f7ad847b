"""Commands for closes: names for what was believed of a period."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

from hindcast.cli.commands.shared import (
    find_user,
    load_contract,
    parse_known_at,
    parse_moment,
    print_rows,
    read_runs,
    refuse_close_as_time,
)
from hindcast.common.errors import QueryError, show_briefly
from hindcast.common.plurals import format_count
from hindcast.plan.closes import PREFIX

if TYPE_CHECKING:
    import pyarrow as pa

    from hindcast.common.settings import Settings
    from hindcast.plan.closes import Close


def close(arguments: argparse.Namespace, settings: Settings) -> int:
    """Name what is believed of a period, so that it can be asked for later and is never trimmed."""
    from hindcast.ops.close_periods import close_period
    from hindcast.plan.closes import describe_close, read_closes, take_back_close

    by = arguments.by or find_user()
    closed: dict[str, Close] = {}
    added: dict[str, Close] = {}
    refuse_close_as_time(arguments.start, arguments.end)
    contracts = [load_contract(settings, pipeline) for pipeline in dict.fromkeys(arguments.pipelines.split(","))]
    ends = [parse_moment(settings, contract.pipeline, arguments.end) for contract in contracts]
    others = [
        [
            parse_moment(settings, contract.pipeline, text) if text is not None else None
            for text in (arguments.start, arguments.known_at)
        ]
        for contract in contracts
    ]
    try:
        for contract, end, (start, known_at) in zip(contracts, ends, others, strict=True):
            pipeline, place = contract.pipeline, (settings.warehouse, contract.pipeline)
            names = {it.name for it in read_closes(*place)}
            closed[pipeline] = close_period(contract, arguments.name, start, end, known_at, by)
            if arguments.name not in names:
                added[pipeline] = closed[pipeline]
    except BaseException:  # all of them or none
        for pipeline, it in added.items():
            take_back_close(settings.warehouse, pipeline, it)
        raise
    if arguments.format == "json":
        print(json.dumps({pipeline: it.as_json() for pipeline, it in closed.items()}, indent=2))
    else:
        for pipeline, it in closed.items():
            print(f"{pipeline}: closed {it.name}: {describe_close(it)}")
    return 0


def restate(arguments: argparse.Namespace, settings: Settings) -> int:
    """Show how the figures of a closed period differ from what was believed at its close, and why."""
    from hindcast.ingest import late_records
    from hindcast.plan import marks
    from hindcast.plan.closes import describe_close, find_close
    from hindcast.query import restatements
    from hindcast.report import restatement_page

    pipeline = arguments.pipeline
    contract = load_contract(settings, pipeline)
    known_at = parse_known_at(settings, pipeline, arguments.known_at)
    name = arguments.name.removeprefix(PREFIX)
    if arguments.records:
        if not {arguments.page, arguments.into, arguments.group_by} <= {None}:
            fix = "leave out --records, or --page, --into and --group-by"
            raise QueryError("a page and a table have figures, not records", fix=fix)
        close = find_close(settings.warehouse, pipeline, name)
        print_rows(late_records.list_late_records(settings.warehouse, contract, close, known_at), arguments.format)
        return 0
    found = restatements.restate_close(settings.warehouse, contract, name, known_at, group_by=arguments.group_by)
    if arguments.page is not None:
        marked = marks.find_bound_contract(settings, pipeline)
        _write_page(arguments.page, restatement_page.render_page(settings, marked, found))
    if arguments.into is not None:
        _write_table(settings, arguments.into, restatements.list_differences(found))
    if arguments.format == "table":
        print(f"{pipeline}: {found.close.name}: {describe_close(found.close)}; now as known at {known_at.isoformat()}")
        if not found.figures:
            print(f"nothing has changed in {format_count(found.tables, 'table')}")
            return 0
    print_rows(restatements.list_rows(found), arguments.format)
    return 0


def _write_table(settings: Settings, folder: Path, rows: pa.Table) -> None:
    """Write rows as a Delta table: a new version, if the folder has a table with these columns."""
    from deltalake import DeltaTable, write_deltalake
    from deltalake.exceptions import DeltaError

    place = str(folder)
    if folder.resolve().is_relative_to(Path(settings.warehouse).resolve()):
        raise QueryError(
            "it is in the warehouse, whose tables runs write", fix="name a folder outside of it", where=place
        )
    try:
        if DeltaTable.is_deltatable(place):
            columns = [field.name for field in DeltaTable(place).schema().fields]
            if columns != rows.column_names:
                found = f"it has a table with other columns: {', '.join(columns)}"
                raise QueryError(show_briefly(found), fix="name another folder", where=place)
        elif folder.exists() and any(folder.iterdir()):
            found = "it has files of something else, or of a first write that was killed"
            raise QueryError(found, fix="name a new folder", where=place)
        write_deltalake(place, rows, mode="overwrite")
    except (DeltaError, OSError) as error:
        text = re.sub(r"\x1b\[\d+m", "", str(error)).partition("\n   0: ")[0]  # without colours and Rust's frames
        cause = show_briefly(" ".join(text.split()))
        fix = "repeat this if another command wrote it at the same time; else name a new folder that you may write"
        raise QueryError(f"cannot be written: {cause}", fix=fix, where=place) from None


def _write_page(path: Path, page: str) -> None:
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        fix = "name a file in a folder that exists"
        raise QueryError(f"cannot be written: {error.strerror}", where=str(path), fix=fix) from None


def closes(arguments: argparse.Namespace, settings: Settings) -> int:
    """List the closes of a pipeline, also dropped ones; or drop one."""
    import pyarrow as pa

    from hindcast.plan.closes import describe_close, drop_close, read_closes

    pipeline = arguments.pipeline
    read_runs(settings, pipeline)
    if arguments.drop is None and arguments.reason is not None:
        raise QueryError(
            "a reason was given, and nothing to drop", fix=f"hindcast closes {pipeline} --drop NAME --reason"
        )
    if arguments.drop is not None:
        if not (arguments.reason or "").strip():
            fix = f"hindcast closes {pipeline} --drop {arguments.drop} --reason TEXT"
            raise QueryError("a close is dropped for a reason, which is kept", where=pipeline, fix=fix)
        by = arguments.by or find_user()
        dropped = drop_close(settings.warehouse, pipeline, arguments.drop, by, arguments.reason)
        print(f"{pipeline}: dropped {dropped.name}: {describe_close(dropped)}")
        return 0
    moment = pa.timestamp("us", "UTC")
    moments = [(name, moment) for name in ("from", "to", "knownAt", "closedAt")]
    texts = [(name, pa.string()) for name in ("by", "droppedBy", "reason")]
    rows = [
        {"name": it.name, "from": it.start, "to": it.end, "knownAt": it.known_at, "closedAt": it.at, "by": it.by}
        | ({"droppedBy": it.drop.by, "reason": it.drop.reason} if it.drop is not None else {})
        for it in read_closes(settings.warehouse, pipeline)
    ]
    print_rows(pa.Table.from_pylist(rows, pa.schema([("name", pa.string()), *moments, *texts])), arguments.format)
    return 0
