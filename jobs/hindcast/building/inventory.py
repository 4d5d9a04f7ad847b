"""Which tables a pipeline has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from hindcast.contracts import Contract
from hindcast.delta import emitted, tables
from hindcast.delta.tables import Table
from hindcast.planning import journal
from hindcast.quality import holds, verdicts
from hindcast.replay import base, logs, schemas, trimmed


def behind(warehouse: str, contract: Contract, names: Iterable[str]) -> Iterator[Table]:
    """The tables of some topics and views, and those that stand behind them, whether they are there or not.

    The journal comes first; what kafka views keep is not among them (`kept`).
    """
    pipeline = contract.pipeline
    yield journal.table(warehouse, pipeline)
    for name in names:
        yield tables.located(warehouse, contract, name)
        if name in contract.topics:
            log = tables.log(warehouse, pipeline, name)
            yield from (log, trimmed.table(log), base.table(warehouse, pipeline, name))
            yield from (of(warehouse, pipeline, name) for of in (tables.fates, schemas.table))
        elif contract.views[name].semantics == "kafka":
            yield emitted.log(warehouse, contract, name)
    yield from (of(warehouse, pipeline) for of in (logs.quarantine, verdicts.table, holds.table))


def kept(warehouse: str, contract: Contract, name: str) -> Table | None:
    """What a kafka view keeps in its last epoch; None if it has processed nothing yet."""
    note = next(iter(tables.notes(emitted.log(warehouse, contract, name)).values()), None)
    return Table(warehouse, contract.pipeline, f"kept/{name}/{note['epoch']}", "kept") if note else None


def every(warehouse: str, contract: Contract) -> Iterator[Table]:
    """All tables of a pipeline that are there."""
    found = behind(warehouse, contract, [*contract.topics, *contract.views])
    yield from (table for table in found if tables.opened(table) is not None)
    for name, view in contract.views.items():
        if view.semantics == "kafka" and (its := kept(warehouse, contract, name)) is not None:
            yield its
