"""Commands that read what runs have written."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from hindcast.bitemporal.fates import FATES
from hindcast.cli.commands.shared import (
    limit_rows,
    load_contract,
    parse_known_at,
    parse_moment,
    parse_table_name,
    print_rows,
    read_runs,
    refuse_close_as_time,
)
from hindcast.common.errors import ContractError, HindcastError, QueryError
from hindcast.common.plurals import format_count

if TYPE_CHECKING:
    import pyarrow as pa

    from hindcast.bitemporal.predicates import Question
    from hindcast.common.settings import Settings
    from hindcast.query.changes import ChangeQuestion
    from hindcast.store.tables import Table


def runs(arguments: argparse.Namespace, settings: Settings) -> int:
    """List the runs of a pipeline."""
    import pyarrow as pa

    rows = [
        {"run": run.number, "state": run.state, "knownAt": run.known_at, "runId": run.run_id, "reason": run.plan.reason}
        | run.counts
        for run in read_runs(settings, arguments.pipeline)
    ]
    counts = [(name, pa.int64()) for name in ("offsets", "opened", "closed")]
    names = [("state", pa.string()), ("knownAt", pa.timestamp("us", "UTC")), *counts]
    columns = pa.schema([("run", pa.int64()), *names, ("runId", pa.string()), ("reason", pa.string())])
    table = pa.Table.from_pylist(rows, schema=columns)
    has_reason = table.column("reason").null_count < table.num_rows
    print_rows(table if has_reason or arguments.format != "table" else table.drop(["reason"]), arguments.format)
    return 0


def ledger(arguments: argparse.Namespace, settings: Settings) -> int:
    """Show which offsets each run ingested, and the outcome of their records."""
    import pyarrow as pa

    from hindcast.ingest import ledger
    from hindcast.ops import journal_rebuild

    if arguments.rebuild and arguments.pipeline is None:
        raise QueryError("no pipeline was named", fix="hindcast ledger PIPELINE --rebuild")
    if arguments.rebuild:
        numbers = journal_rebuild.rebuild_journal(settings.warehouse, load_contract(settings, arguments.pipeline))
        text = f"rewrote run {', '.join(map(str, numbers))}" if numbers else "agrees with the logs; nothing was written"
        print(f"{arguments.pipeline}: {text}")
        return 0
    if arguments.pipeline:
        read_runs(settings, arguments.pipeline)
        ledgers, damaged = [ledger.read_ledger(settings.warehouse, arguments.pipeline)], 0
    else:
        ledgers, damaged = _read_all_ledgers(settings)
    rows = pa.concat_tables(ledgers)
    empty = [column for column in ("member", "anew", *FATES[1:]) if not any(rows.column(column).to_pylist())]
    print_rows(rows.drop(empty) if arguments.format == "table" else rows, arguments.format)
    return 1 if damaged else 0


def _read_all_ledgers(settings: Settings) -> tuple[list[pa.Table], int]:
    """Return the ledgers of all pipelines that can be read, and how many cannot; print on stderr why.

    Raise the error of the first if none can be read.
    """
    from hindcast.ingest import ledger

    ledgers: list[pa.Table] = []
    errors: list[HindcastError] = []
    for pipeline in _list_pipelines(settings):
        try:
            ledgers.append(ledger.read_ledger(settings.warehouse, pipeline))
        except HindcastError as error:
            errors.append(error)
    if errors and not ledgers:
        raise errors[0]
    for skipped in errors:
        print(f"skipped: {skipped}", file=sys.stderr)
    return [ledger.SCHEMA.empty_table(), *ledgers], len(errors)


def _list_pipelines(settings: Settings) -> list[str]:
    """Return the pipelines of all contracts that are valid; print on stderr what is wrong with the others."""
    from hindcast.contract.folder import try_load_all

    contracts = [*try_load_all(settings.schemas, settings.choice.for_others).values()]
    for error in (it for it in contracts if isinstance(it, ContractError)):
        print(f"skipped: {error}", file=sys.stderr)
    return sorted(it.pipeline for it in contracts if not isinstance(it, ContractError))


def report(arguments: argparse.Namespace, settings: Settings) -> int:
    """Show what a run did, or what stopped it (default: the last run)."""
    from hindcast.report import page, report, report_text

    runs = [r for r in read_runs(settings, arguments.pipeline) if r.has_report]
    run = next((r for r in reversed(runs) if arguments.run in (None, r.number)), None)
    if run is None:
        numbers = ", ".join(str(r.number) for r in runs) or "none"
        raise QueryError("no such run with a report", where=arguments.pipeline, fix=f"runs with a report: {numbers}")
    contract = load_contract(settings, arguments.pipeline)
    with run.refuse_malformed_report():
        fields = report.read_report(contract, run)
        if arguments.data_docs:
            from hindcast.quality import datadocs

            gates = {name: [gate.result for gate in table.gates] for name, table in fields.tables.items()}
            print(datadocs.build_site(contract, run.run_id, run.known_at, gates, arguments.data_docs))
            return 0
        formats = {"json": lambda: json.dumps(fields.as_json(), indent=2), "html": lambda: page.render_page(fields)}
        print(formats.get(arguments.format, lambda: report_text.format_report(fields))())
    return 0


def failing(arguments: argparse.Namespace, settings: Settings) -> int:
    """List the rows that failed a gate, or that are held back because of it."""
    import pyarrow.compute as pc

    from hindcast.common.errors import suggest_nearest
    from hindcast.quality import entry_masks, failing_rows, held_changes

    contract, warehouse = load_contract(settings, arguments.pipeline), settings.warehouse
    if arguments.held:
        rows = held_changes.read_held_rows(warehouse, arguments.pipeline, arguments.run)
        if arguments.table:
            rows = rows.filter(pc.equal(rows.column("table"), arguments.table))
    else:
        rows = failing_rows.list_entries(warehouse, arguments.pipeline, arguments.table, arguments.run, arguments.gate)
    tables = (*contract.topics, *contract.views)
    if arguments.table and arguments.table not in tables and not rows.num_rows:  # one of former times can have rows
        fix = suggest_nearest(arguments.table, tables)
        raise QueryError(f"no table '{arguments.table}'", where=arguments.pipeline, fix=fix)
    empty = [name for name in rows.column_names if 0 < rows.num_rows == rows.column(name).null_count]
    shown, note = limit_rows(rows, arguments.format, arguments.limit)
    shown = entry_masks.mask_entries(contract, shown)
    print_rows(shown.drop({*empty, "since"}) if arguments.format == "table" else shown, arguments.format)
    _print_note(note)
    return 0


def _print_note(note: str) -> None:
    """Print a note on stderr, unless it is empty."""
    if note:
        print(note, file=sys.stderr)


def quarantine(arguments: argparse.Namespace, settings: Settings) -> int:
    """List the records that were refused, each with its outcome and the reason."""
    from hindcast.common.errors import suggest_nearest
    from hindcast.ingest import quarantine

    contract = load_contract(settings, arguments.pipeline)
    if arguments.topic is not None and arguments.topic not in contract.topics:
        fix = suggest_nearest(arguments.topic, contract.topics)
        raise QueryError(f"no topic '{arguments.topic}'", where=arguments.pipeline, fix=fix)
    if arguments.rebuild:
        from hindcast.ops.verify import quarantine_checks

        records = format_count(quarantine_checks.rebuild_quarantine(settings.warehouse, contract), "record")
        print(f"{arguments.pipeline}: the quarantine was rebuilt from the logs: {records}")
        return 0
    rows = quarantine.read_refused(settings.warehouse, contract, arguments.topic, everything=arguments.all)
    shown, note = limit_rows(rows, arguments.format, arguments.limit)
    shown = quarantine.mask_refused(settings.warehouse, contract, shown)
    print_rows(shown if arguments.all or arguments.format != "table" else shown.drop(["now"]), arguments.format)
    _print_note(note)
    return 0


def query(arguments: argparse.Namespace, settings: Settings) -> int:
    """Show what was true at a moment, as known at another."""
    from hindcast.plan.closes import PREFIX, find_close
    from hindcast.query import read

    pipeline, name = parse_table_name(arguments.table)
    contract, warehouse = load_contract(settings, pipeline), settings.warehouse
    table = read.locate_table(warehouse, contract, name)
    if arguments.command is history:
        key = read.parse_key(table, arguments.key) if arguments.key is not None else None
        print_rows(read.history(warehouse, contract, name, key=key, run=arguments.run), arguments.format)
        return 0
    times = arguments.as_of, arguments.start, arguments.end
    refuse_close_as_time(*times)
    as_of, start, end, known = (
        parse_moment(settings, pipeline, text) if text is not None else None for text in (*times, arguments.known_at)
    )
    if known is not None and times == (None, None, None) and arguments.known_at.startswith(PREFIX):
        period = find_close(warehouse, pipeline, arguments.known_at.removeprefix(PREFIX)).question
        start, end = period.from_time, period.to_time
    order = arguments.order.split(",") if arguments.order else ()
    question = replace(
        _ask_for_keys(arguments, table), as_of=as_of, from_time=start, to_time=end, known_at=known, order=order
    )
    rows = read.query(warehouse, contract, name, question)
    print_rows(rows, arguments.format)
    first = next((run.known_at for run in read_runs(settings, pipeline)), None)
    if known and first and known < first:
        print(f"hindcast: nothing was known yet: the first run is known at {first.isoformat()}", file=sys.stderr)
    return 0


def _ask_for_keys(arguments: argparse.Namespace, table: Table) -> Question:
    """Return the question for the keys of a table that a command names: one, those of a range, or all."""
    from hindcast.bitemporal.predicates import Question
    from hindcast.query import read

    key = read.parse_key(table, arguments.key) if arguments.key is not None else None
    bounds = (arguments.from_key, arguments.to_key)
    lower, upper = (read.parse_key_bound(table, text) if text is not None else () for text in bounds)
    return Question(key, lower, upper)


def history(arguments: argparse.Namespace, settings: Settings) -> int:
    """Show every row that was ever current, with both periods; or those that a run changed."""
    return query(arguments, settings)


def diff(arguments: argparse.Namespace, settings: Settings) -> int:
    """Show how the answers of a table have changed, in a run or between two moments of knowledge; or of a pipeline in
    how many rows of each table.
    """
    from hindcast.query import cause_columns, change_causes, changes, read

    pipeline, dot, name = arguments.table.partition(".")
    contract, warehouse = load_contract(settings, pipeline), settings.warehouse
    question = _ask_for_changes(arguments, settings, pipeline)
    if not dot:
        if arguments.causes:
            raise QueryError("the changes of a pipeline are counts, without causes", fix="name a table: PIPELINE.TABLE")
        if not {arguments.key, arguments.from_key, arguments.to_key} <= {None}:
            raise QueryError("the tables of a pipeline have different keys", fix="name a table: PIPELINE.TABLE")
        counts = changes.count_changes(warehouse, contract, question)
        if not counts and arguments.format == "table":
            count = len(contract.topics) + len(contract.views)
            print(f"nothing has changed in {format_count(count, 'table')} of {pipeline}")
            return 0
        print_rows(changes.list_counts(counts), arguments.format)
        return 0
    question = replace(question, keys=_ask_for_keys(arguments, read.locate_table(warehouse, contract, name)))
    found = changes.read_changes(warehouse, contract, name, question)
    shown, note = limit_rows(found.lines, arguments.format, arguments.limit)
    is_text = arguments.format == "table"
    rows = (changes.describe_lines if is_text else changes.flatten_lines)(shown)
    if arguments.causes:
        causes = change_causes.find_all_causes(settings, contract, found.table, question, shown)
        rows = (cause_columns.append_texts if is_text else cause_columns.append_causes)(rows, causes)
    print_rows(rows, arguments.format)
    _print_note(note)
    return 0


def _ask_for_changes(arguments: argparse.Namespace, settings: Settings, pipeline: str) -> ChangeQuestion:
    from hindcast.query import changes, read

    warehouse = settings.warehouse
    if arguments.run is not None and (arguments.start or arguments.end):
        raise QueryError("--run names both moments", fix="leave out --from and --to, or write them without --run")
    last = f"run:{arguments.run}" if arguments.run is not None else arguments.end
    later = parse_known_at(settings, pipeline, last)
    earlier = (
        parse_moment(settings, pipeline, arguments.start)
        if arguments.start
        else changes.find_moment_before(warehouse, pipeline, later)
    )
    period = read.find_period(warehouse, pipeline, arguments.start, last)
    asked = [text for text in (arguments.valid_from, arguments.valid_to) if text is not None]
    if asked and period is not None:
        raise QueryError("a close names the period that it is about", fix="leave out --valid-from and --valid-to")
    if len(asked) == 1:
        raise QueryError("half a period was given", fix="write both --valid-from and --valid-to")
    if asked:
        refuse_close_as_time(*asked)
        start, end = (parse_moment(settings, pipeline, text) for text in asked)
        if start >= end:
            raise QueryError(f"--valid-from {start.isoformat()} is not before --valid-to {end.isoformat()}")
        period = start, end
    return changes.ChangeQuestion(earlier, later, arguments.corrections, arguments.order, period=period)


def why(arguments: argparse.Namespace, settings: Settings) -> int:
    """Show why a key had its answer: the rows of the inputs that it was made of, as known then, and their records."""
    from hindcast.common import clock
    from hindcast.quality.held_keys import HeldKeys
    from hindcast.query import answers, read

    pipeline, name = parse_table_name(arguments.table)
    contract = load_contract(settings, pipeline)
    key = read.parse_key(read.locate_table(settings.warehouse, contract, name), arguments.key)
    known = parse_known_at(settings, pipeline, arguments.known_at)
    as_of = parse_moment(settings, pipeline, arguments.as_of) if arguments.as_of else clock.now()
    readable = {pipeline, *(input_.table.partition(".")[0] for input_ in contract.inputs.values())}
    holds = HeldKeys(settings.warehouse, contract, name, known)
    found = answers.explain_answers(settings, contract, name, key, as_of, known, readable, holds)
    shown = json.dumps([it.as_json() for it in found], indent=2) if arguments.format == "json" else None
    print(shown or answers.format_answers(found))
    return 0


def compare(arguments: argparse.Namespace, settings: Settings) -> int:
    """Compare a kafka view with a live application's output topic; exit code 0: equal, 1: different, 2: cannot tell."""
    from hindcast.ops.compare import compare_view, formatting

    pipeline, name = parse_table_name(arguments.table)
    comparison = compare_view(
        settings.warehouse,
        settings.kafka,
        load_contract(settings, pipeline),
        name,
        arguments.topic,
        arguments.limit,
        arguments.key_format,
    )
    print(formatting.as_json(comparison) if arguments.format == "json" else formatting.format_comparison(comparison))
    return 1 if comparison.differences else 0


def sql(arguments: argparse.Namespace, settings: Settings) -> int:
    """Print the statements that create a pipeline's table functions in Spark SQL."""
    from hindcast.query import spark_functions

    for statement in spark_functions.build_statements(settings.warehouse, load_contract(settings, arguments.pipeline)):
        print(f"{statement};")
    return 0
