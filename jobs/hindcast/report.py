"""What a run did: fates, late records, what changed, gates, and how to run it again."""

from __future__ import annotations

from typing import Any

from hindcast import ledger, plans, tables
from hindcast.contracts import Contract
from hindcast.errors import RunError
from hindcast.gates import named
from hindcast.plans import Plan, Share
from hindcast.tables import Table


def make(warehouse: str, contract: Contract, plan: Plan) -> dict[str, Any]:
    """The report of a run whose steps have all been done.

    RunError if the fates of a partition do not add up to its planned offsets (design.md 5, conservation).
    """
    topics = {}
    for name, share in plan.topics.items():
        partitions = _fates(plans.log(warehouse, contract.pipeline, name), plan.run, share)
        topics[name] = {
            "topic": contract.kafka_topic(name),
            "offsets": sum(share.planned.values()),
            "late": sum(p.pop("late") for p in partitions),
            "partitions": partitions,
        }
    changed = {}
    for name in (*contract.topics, *contract.views):
        note = tables.notes(tables.located(warehouse, contract, name)).get(plan.run)
        changed[name] = note or {"opened": 0, "closed": 0, "corrected": 0, "gates": []}
    return {
        "pipeline": contract.pipeline,
        "run": plan.run,
        "runId": plan.run_id,
        "knownAt": plan.known_at.isoformat(),
        "intervalEnd": plan.interval_end.isoformat() if plan.interval_end else None,
        "topics": topics,
        "tables": changed,
        "again": f"hindcast run {contract.pipeline}",
    }


def text(report: dict[str, Any]) -> str:
    """The report as lines for a terminal or a task's log."""
    lines = [f"{report['pipeline']}, run {report['run']} ({report['runId']}), known at {report['knownAt']}", ""]
    for name, topic in report["topics"].items():
        fates: dict[str, int] = {}
        for part in topic["partitions"]:
            for fate, n in part["fates"].items():
                fates[fate] = fates.get(fate, 0) + n
        told = ", ".join(f"{n:,} {fate}" for fate, n in fates.items()) or "nothing new"
        late = f"; {topic['late']:,} late" if topic["late"] else ""
        lines.append(f"  {name:<20} {topic['offsets']:>10,} offsets: {told}{late}")
    lines.append("")
    for name, table in report["tables"].items():
        lines.append(f"  {name:<20} {_changed(table)}")
        for gate in table["gates"]:
            detail = f" ({gate['on_failure']}): {gate['detail']}" if gate["outcome"] != "passed" else ""
            lines.append(f"  {'':<20}   {gate['outcome']:<6} {named(gate['expectation'], gate['kwargs'])}{detail}")
    return "\n".join([*lines, "", f"  again: {report['again']}"])


def _changed(table: dict[str, Any]) -> str:
    told = {
        "{:,} rows opened" if table["opened"] != 1 else "{} row opened": table["opened"],
        "{:,} closed": table["closed"],
        "{:,} of these a past answer": table["corrected"],
    }
    return ", ".join(text.format(n) for text, n in told.items() if n) or "unchanged"


def _fates(log: Table, run: int, share: Share) -> list[dict[str, Any]]:
    """Each planned range with the counts by fate of what the log has of it."""
    found = {(piece.partition, piece.start): piece for piece in ledger.pieces(log, run)}
    told = []
    for partition, offsets in [*share.earlier.items(), *share.ranges.items()]:
        planned = offsets.end - offsets.start
        piece = found.get((partition, offsets.start)) if planned else None
        fates = piece.fates if piece else {}
        if planned and (piece is None or piece.end != offsets.end):
            raise RunError(
                f"{planned} offsets were planned ({offsets.start} to {offsets.end - 1}), "
                f"{sum(fates.values())} have a fate: {fates}",
                where=f"{log.path}, partition {partition}, run {run}",
                mend="retry the run's replay step; if that does not help, the log was changed by another hand",
            )
        late = piece.late if piece else 0
        told.append({"partition": partition, "start": offsets.start, "end": offsets.end, "fates": fates, "late": late})
    return told
