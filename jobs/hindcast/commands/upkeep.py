"""Commands for tables that live for years."""

from __future__ import annotations

import argparse
import json
from functools import partial

from hindcast.commands.shared import contract_of, session_of, table_of
from hindcast.settings import settings


def verify(arguments: argparse.Namespace) -> int:
    """Check the invariants on a pipeline's tables; exit code 0: they hold, 1: findings, 2: cannot tell."""
    from hindcast.upkeep.verifying import verify

    contract = contract_of(arguments.pipeline)
    given = None if arguments.quick else partial(session_of, arguments.pipeline)
    told = verify.verify(settings().warehouse, contract, arguments.table, given, whole=arguments.whole)
    print(json.dumps(told.as_json(), indent=2) if arguments.format == "json" else verify.text(told))
    return 1 if told.findings else 0


def doctor(arguments: argparse.Namespace) -> int:
    """Say what is installed, reachable and writable here, and what to do where it is not; exit code 1 if any failed."""
    from hindcast.upkeep import doctor

    lines = doctor.examine()
    print(json.dumps(doctor.as_json(lines), indent=2) if arguments.format == "json" else doctor.text(lines))
    return 0 if doctor.healthy(lines) else 1


def maintain(arguments: argparse.Namespace) -> int:
    """Join small files of a pipeline's tables, sort files by time, remove what no version of the last days needs."""
    from hindcast.upkeep import maintenance

    told = maintenance.maintain(
        partial(session_of, arguments.pipeline), settings(), contract_of(arguments.pipeline), dry_run=arguments.dry_run
    )
    print(json.dumps(told.as_json(), indent=2) if arguments.format == "json" else maintenance.text(told))
    return 0


def trim(arguments: argparse.Namespace) -> int:
    """Remove what `keep` in the contract says need not be kept, of tables, logs and quarantine."""
    from hindcast.upkeep import retention

    contract = contract_of(arguments.pipeline)
    told = retention.trim(session_of(arguments.pipeline), contract, dry_run=arguments.dry_run)
    print(json.dumps(told, indent=2) if arguments.format == "json" else retention.text(told))
    return 0


def forget(arguments: argparse.Namespace) -> int:
    """Take a key out of everything that a pipeline has, with proof, in a run of its own; or say what would go."""
    from hindcast.upkeep.forgetting import forget, records

    pipeline, name = table_of(arguments.table)
    contract = contract_of(pipeline)
    what = records.asked(contract, name, arguments.key, arguments.offset or ())
    spark = session_of(pipeline)
    if arguments.dry_run:
        found = forget.preview(spark, contract, what)
        lines = [f"{pipeline}: what would be forgotten; nothing was written"]
        lines += [f"  {table:<28} {rows:>8,} rows" for table, rows in found.items()]
        lines += [] if any(found.values()) else ["  nothing is left of it: an earlier run has forgotten it"]
        lines += [f"  {line}" for line in forget.besides(forget.readers(contract, list(found)))]
        print(json.dumps(found, indent=2) if arguments.format == "json" else "\n".join(lines))
        return 0
    told = forget.forget(spark, contract, what, arguments.reason)
    print(json.dumps(told, indent=2) if arguments.format == "json" else forget.text(pipeline, told))
    return 0 if told["proven"] else 1


def upgrade(arguments: argparse.Namespace) -> int:
    """Bring a topic's table of an older store format to today's, or go on with that; adopt a plain Delta table."""
    from hindcast.upkeep.upgrading import upgrade

    pipeline, name = table_of(arguments.table)
    contract = contract_of(pipeline)
    upgrade.of_topic(contract, name)
    for line in upgrade.upgrade(session_of(pipeline), contract, name, arguments.mode):
        print(f"{pipeline}.{name}: {line}")
    return 0


def downgrade(arguments: argparse.Namespace) -> int:
    """Make a topic's table one of an older store format; where that loses something, only if told to."""
    from hindcast.upkeep.upgrading import downgrade, upgrade

    pipeline, name = table_of(arguments.table)
    contract = contract_of(pipeline)
    upgrade.of_topic(contract, name)
    spark = session_of(pipeline)
    for line in downgrade.downgrade(spark, contract, name, arguments.to, lose=arguments.lose):
        print(f"{pipeline}.{name}: {line}")
    return 0
