"""Commands for tables that live for years."""

from __future__ import annotations

import argparse
import json
from functools import partial
from typing import TYPE_CHECKING

from hindcast.cli.commands.shared import load_contract, open_session, parse_table_name

if TYPE_CHECKING:
    from hindcast.common.settings import Settings


def verify(arguments: argparse.Namespace, settings: Settings) -> int:
    """Check the invariants of a pipeline's tables; exit code 0: they hold, 1: findings, 2: cannot tell."""
    from hindcast.ops.verify import verify

    contract = load_contract(settings, arguments.pipeline)
    session = None if arguments.quick else partial(open_session, settings, arguments.pipeline)
    report = verify.verify_tables(contract, arguments.table, session, whole=arguments.whole)
    print(json.dumps(report.as_json(), indent=2) if arguments.format == "json" else verify.format_report(report))
    return 1 if report.findings else 0


def doctor(arguments: argparse.Namespace, _: Settings) -> int:
    """Check what is installed, reachable and writable here, and how to fix the rest; exit code 1 if a check fails."""
    from hindcast.ops import doctor

    lines = doctor.run_checks()
    print(json.dumps(doctor.as_json(lines), indent=2) if arguments.format == "json" else doctor.format_report(lines))
    return 0 if doctor.is_healthy(lines) else 1


def maintain(arguments: argparse.Namespace, settings: Settings) -> int:
    """Merge small files of a pipeline's tables, sort files by time, and remove files that no recent version needs."""
    from hindcast.ops import maintenance

    contract, session = load_contract(settings, arguments.pipeline), partial(open_session, settings, arguments.pipeline)
    report = maintenance.maintain_tables(session, settings, contract, dry_run=arguments.dry_run)
    print(json.dumps(report.as_json(), indent=2) if arguments.format == "json" else maintenance.format_report(report))
    return 0


def forecast(arguments: argparse.Namespace, settings: Settings) -> int:
    """Show how the tables of a pipeline grow, and roughly how long a first run of its contract would take."""
    from hindcast.contract import Contract, try_load_all
    from hindcast.ops import forecast

    contract = load_contract(settings, arguments.pipeline)
    every = try_load_all(settings.schemas, settings.choice.for_others).values()
    names = {contract.pipeline, *(other.pipeline for other in every if isinstance(other, Contract))}
    result = forecast.forecast_pipeline(contract, sorted(names))
    print(json.dumps(result.as_json(), indent=2) if arguments.format == "json" else forecast.format_forecast(result))
    return 0


def trim(arguments: argparse.Namespace, settings: Settings) -> int:
    """Remove from tables, logs and quarantine what `keep` in the contract does not ask to keep."""
    from hindcast.ops import retention

    contract = load_contract(settings, arguments.pipeline)
    report = retention.trim_pipeline(open_session(settings, arguments.pipeline), contract, dry_run=arguments.dry_run)
    print(json.dumps(report.as_json(), indent=2) if arguments.format == "json" else retention.format_report(report))
    return 0


def forget(arguments: argparse.Namespace, settings: Settings) -> int:
    """Erase a key from everything that a pipeline has, with proof, in a run of its own; or show what would go."""
    from hindcast.ops.erase import forget, readers, records
    from hindcast.ops.erase.proof import describe_lost_value, format_proof

    pipeline, name = parse_table_name(arguments.table)
    contract = load_contract(settings, pipeline)
    request = records.parse_request(contract, name, arguments.key, arguments.offset or ())
    spark = open_session(settings, pipeline)
    if arguments.dry_run:
        counts = forget.preview_erasure(spark, contract, request)
        lines = [f"{pipeline}: what would be forgotten; nothing was written"]
        lines += [f"  {table:<28} {rows:>8,} rows" for table, rows in counts.items()]
        lines += [] if any(counts.values()) else ["  nothing is left of it: an earlier run has forgotten it"]
        lines += [f"  {line}" for line in describe_lost_value(records.find_lost_since(spark, contract, request))]
        lines += [f"  {line}" for line in readers.describe_readers(readers.find_readers(contract, list(counts)))]
        print(json.dumps(counts, indent=2) if arguments.format == "json" else "\n".join(lines))
        return 0
    proof = forget.forget_records(spark, contract, request, arguments.reason)
    print(json.dumps(proof.as_json(), indent=2) if arguments.format == "json" else format_proof(proof))
    return 0 if proof.is_proven else 1


def upgrade(arguments: argparse.Namespace, settings: Settings) -> int:
    """Upgrade a topic's table from an older store format, or resume an upgrade; adopt a plain Delta table."""
    from hindcast.ops.upgrade import upgrade

    pipeline, name = parse_table_name(arguments.table)
    contract = load_contract(settings, pipeline)
    upgrade.locate_topic_table(contract, name)
    for line in upgrade.upgrade_table(open_session(settings, pipeline), contract, name, arguments.mode):
        print(f"{pipeline}.{name}: {line}")
    return 0


def downgrade(arguments: argparse.Namespace, settings: Settings) -> int:
    """Downgrade a topic's table to an older store format; with loss of data only if --lose allows it."""
    from hindcast.ops.upgrade import downgrade, upgrade

    pipeline, name = parse_table_name(arguments.table)
    contract = load_contract(settings, pipeline)
    upgrade.locate_topic_table(contract, name)
    spark = open_session(settings, pipeline)
    for line in downgrade.downgrade_table(spark, contract, name, arguments.to, lose=arguments.lose):
        print(f"{pipeline}.{name}: {line}")
    return 0
