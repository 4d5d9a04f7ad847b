"""Commands that show what runs have made of topics."""

from __future__ import annotations

import argparse
import json
import sys

from hindcast.commands.shared import contract_of, cut, moment_of, runs_of, show, table_of
from hindcast.errors import QueryError
from hindcast.settings import settings
from hindcast.words import counted


def runs(arguments: argparse.Namespace) -> int:
    """List the runs of a pipeline."""
    import pyarrow as pa

    runs = runs_of(arguments.pipeline)
    rows = [{"run": r.number, "state": r.state, "knownAt": r.known_at, "runId": r.run_id} for r in runs]
    columns = pa.schema(
        [("run", pa.int64()), ("state", pa.string()), ("knownAt", pa.timestamp("us", "UTC")), ("runId", pa.string())]
    )
    show(pa.Table.from_pylist(rows, schema=columns), arguments.format)
    return 0


def ledger(arguments: argparse.Namespace) -> int:
    """Show which offsets each run brought, and how many had which fate."""
    import pyarrow as pa

    from hindcast.contracts.load import load_all
    from hindcast.replay import ledger
    from hindcast.upkeep import rebuild

    if arguments.rebuild and arguments.pipeline is None:
        raise QueryError("no pipeline was named", mend="hindcast ledger PIPELINE --rebuild")
    if arguments.rebuild:
        anew = rebuild.rebuild(settings().warehouse, contract_of(arguments.pipeline))
        told = f"run {', '.join(map(str, anew))} written anew" if anew else "as the logs have it; nothing was written"
        print(f"{arguments.pipeline}: {told}")
        return 0
    if arguments.pipeline:
        runs_of(arguments.pipeline)
    pipelines = [arguments.pipeline] if arguments.pipeline else sorted(load_all(settings().schemas))
    rows = pa.concat_tables([ledger.fates(settings().warehouse, name) for name in pipelines])
    empty = [column for column in ("member", "anew", *ledger.FATES[1:]) if not any(rows.column(column).to_pylist())]
    show(rows.drop(empty) if arguments.format == "table" else rows, arguments.format)
    return 0


def report(arguments: argparse.Namespace) -> int:
    """Show what a run did, or what stopped it; the last one if none is named."""
    from hindcast.reports import page, report

    runs = [r for r in runs_of(arguments.pipeline) if r.reported]
    found = next((r for r in reversed(runs) if arguments.run in (None, r.number)), None)
    if found is None:
        known = ", ".join(str(r.number) for r in runs) or "none"
        raise QueryError("no such run that has a report", where=arguments.pipeline, mend=f"these have: {known}")
    contract = contract_of(arguments.pipeline)
    told = report.of(settings().warehouse, contract, found)
    if arguments.data_docs:
        from hindcast.quality import datadocs

        print(datadocs.build(contract, told, arguments.data_docs))
        return 0
    as_ = {"json": lambda: json.dumps(told, indent=2), "html": lambda: page.html(told)}
    print(as_.get(arguments.format, lambda: report.text(told))())
    return 0


def failing(arguments: argparse.Namespace) -> int:
    """List the rows that failed a gate, or that are held back because of it."""
    import pyarrow.compute as pc

    from hindcast.quality import holds

    contract, warehouse = contract_of(arguments.pipeline), settings().warehouse
    if arguments.held:
        rows = holds.held(warehouse, arguments.pipeline, arguments.run)
        if arguments.table:
            rows = rows.filter(pc.equal(rows.column("table"), arguments.table))
    else:
        rows = holds.listed(warehouse, arguments.pipeline, arguments.table, arguments.run, arguments.gate)
    empty = [name for name in rows.column_names if 0 < rows.num_rows == rows.column(name).null_count]
    some, rest = cut(rows, arguments.format, arguments.limit)
    some = holds.masked(contract, some)
    show(some.drop({*empty, "since"}) if arguments.format == "table" else some, arguments.format)
    _tell(rest)
    return 0


def _tell(rest: str) -> None:
    """Say on stderr what a list has left out, if anything."""
    if rest:
        print(rest, file=sys.stderr)


def quarantine(arguments: argparse.Namespace) -> int:
    """List the records that are refused, each with its fate and the reason."""
    from hindcast.errors import nearest
    from hindcast.replay import quarantine

    contract = contract_of(arguments.pipeline)
    if arguments.topic is not None and arguments.topic not in contract.topics:
        mend = nearest(arguments.topic, contract.topics)
        raise QueryError(f"no topic '{arguments.topic}'", where=arguments.pipeline, mend=mend)
    if arguments.rebuild:
        from hindcast.upkeep.verifying import refused

        told = counted(refused.rebuild(settings().warehouse, contract), "record")
        print(f"{arguments.pipeline}: the quarantine was made again from the logs: {told}")
        return 0
    rows = quarantine.selected(settings().warehouse, contract, arguments.topic, everything=arguments.all)
    some, rest = cut(rows, arguments.format, arguments.limit)
    some = quarantine.shown(contract, some)
    show(some if arguments.all or arguments.format == "json" else some.drop(["now"]), arguments.format)
    _tell(rest)
    return 0


def query(arguments: argparse.Namespace) -> int:
    """Show what was true at a moment, as known at another."""
    from hindcast import read
    from hindcast.questions import Question

    pipeline, name = table_of(arguments.table)
    contract, warehouse = contract_of(pipeline), settings().warehouse
    table = read.locate(warehouse, contract, name)
    key = read.key_of(table, arguments.key) if arguments.key is not None else None
    if arguments.command is history:
        show(read.history(warehouse, contract, name, key=key, run=arguments.run), arguments.format)
        return 0
    as_of, start, end, known = (
        moment_of(pipeline, text) if text is not None else None
        for text in (arguments.as_of, arguments.start, arguments.end, arguments.known_at)
    )
    lower, upper = (
        read.bound_of(table, text) if text is not None else () for text in (arguments.from_key, arguments.to_key)
    )
    order = arguments.order.split(",") if arguments.order else ()
    question = Question(key, lower, upper, as_of, start, end, known, order)
    rows = read.query(warehouse, contract, name, question)
    show(rows, arguments.format)
    first = next((run.known_at for run in runs_of(pipeline)), None)
    if known and first and known < first:
        print(f"hindcast: nothing was known yet: the first run is known at {first.isoformat()}", file=sys.stderr)
    return 0


def history(arguments: argparse.Namespace) -> int:
    """Show every row ever believed, with both periods; or those that a run has changed."""
    return query(arguments)


def compare(arguments: argparse.Namespace) -> int:
    """Compare a kafka view with a live application's output topic; exit code 0: equal, 1: different, 2: cannot tell."""
    from hindcast.compare import compare, showing

    pipeline, name = table_of(arguments.table)
    told = compare(
        settings().warehouse,
        settings().kafka,
        contract_of(pipeline),
        name,
        arguments.topic,
        arguments.limit,
        arguments.key_format,
    )
    print(showing.as_json(told) if arguments.format == "json" else showing.text(told))
    return 1 if told.differences else 0


def sql(arguments: argparse.Namespace) -> int:
    """Print the statements that make a pipeline's table functions in Spark SQL."""
    from hindcast import functions

    for statement in functions.statements(settings().warehouse, contract_of(arguments.pipeline)):
        print(f"{statement};")
    return 0
