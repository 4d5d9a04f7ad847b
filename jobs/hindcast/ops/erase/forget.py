"""Forget one key of a topic, or single records: erase them from everything that a pipeline has, with proof.

    plan -> remove rows, from the last views up to the topic -> remove bytes from the log -> purge files
         -> derive what is made of the topic -> prove -> report

It is a run of its own. What it forgets is stored in no table, and the journal has only its sha256: whoever repeats the
command gives it again, and the run goes on. Rows are removed from below upwards and the log comes last, because what a
row was made of decides which rows go; records that have lost their bytes are known by their mark.

The run ingests no offsets. Later records of the same key are new ones.
"""

from __future__ import annotations

import json
from pathlib import Path

from pyspark.sql import SparkSession

from hindcast.common.errors import HindcastError, RequestError, RunError
from hindcast.contract import Contract
from hindcast.contract.bound import BoundContract
from hindcast.ingest import initial_rows
from hindcast.ops.erase import purge, records
from hindcast.ops.erase.erased_rows import ErasedRows, find_erased_rows
from hindcast.ops.erase.erasure_step import ErasureStep
from hindcast.ops.erase.proof import Proof, proof_path
from hindcast.ops.erase.records import ErasureRequest
from hindcast.plan import horizon, journal, notices, planner, rehearsals
from hindcast.plan.inputs import locate_own_table
from hindcast.plan.purposes import Erasure
from hindcast.plan.runs import Run
from hindcast.runs import emission_progress, run_steps
from hindcast.store import commit_once, tables
from hindcast.store.folder import WarehouseFolder


def forget_records(
    spark: SparkSession, contract: BoundContract, request: ErasureRequest, reason: str | None = None
) -> Proof:
    """Forget what is requested and return the proof, which is also stored with the reports (`forget-RUN.json`).

    For what was forgotten before and has not come again, return the proof of that run, if it left nothing. Raises
    RequestError if no record ever matched; if the contract was changed since the last run, because tables have to match
    it; during an upgrade of the topic's table; and if a kafka view that cannot start from scratch would have to.
    Raises BusyError while another process forgets something of the pipeline, RunError if one took this for dead.
    """
    settings, pipeline = contract.settings, contract.pipeline
    _refuse_links(contract)
    past, digest = journal.read_runs(settings.warehouse, pipeline), request.digest(spark, contract)
    same = [run for run in past if run.plan.erasure and run.plan.erasure.digest == digest]
    begun = next((run for run in same if run.state == "planned"), None)
    if past and past[-1].plan.contract != contract.hash:
        found = f"the contract, or a variable of it (--var), was changed since run {past[-1].number}"
        fix = (
            "rehearse the next interval, or put the contract back, then forget"
            if rehearsals.is_open(past)
            else f"hindcast run {pipeline}, then forget"
        )
        raise RequestError(found, where=pipeline, fix=fix)
    erased = _find_erased_rows(spark, contract, request, past)
    if begun is None and not _has_rows(spark, contract, request, erased):
        if not same:
            raise _not_found_error(contract, request, erased)
        if same[-1].state == "completed":
            run_steps.finish_run(settings, pipeline, same[-1].number)  # it may have died before its report was written
            proven = _read_proof(settings.reports / pipeline, same[-1].number)
            if proven.is_proven:
                return proven
    run_id = begun.run_id if begun else journal.new_run_id("forget")
    erasure = Erasure(request.topic, digest, tuple(erased.formerly) if erased else ())
    if begun is None:
        _refuse_unready(contract, erasure)
    plan = planner.ensure_plan(contract, run_id, reason=reason, instead=erasure)
    with notices.post_forgetting(settings.warehouse, pipeline):
        step = ErasureStep(spark, contract, request, plan, erasure, past)
        with commit_once.add_commit_guard(step.refuse_ended):
            step.remove_rows()
            step.purge_files()
            try:
                run_steps.execute_table_steps(spark, settings, pipeline, plan.run)
            except HindcastError:  # the failure has nothing to do with the key
                step.remove_unheld(derived=False)
                step.write_proof()
                raise
            step.remove_unheld(derived=True)
            proven = step.write_proof()
        run_steps.finish_run(settings, pipeline, plan.run)
    return proven


def preview_erasure(spark: SparkSession, contract: BoundContract, request: ErasureRequest) -> dict[str, int]:
    """Return how many rows of each table would be removed, and how many records of the log would lose their bytes.

    Nothing is written. All counts are 0 for what a run has forgotten. Raises RequestError if no record ever matched.
    """
    past, digest = journal.read_runs(contract.warehouse, contract.pipeline), request.digest(spark, contract)
    erased = _find_erased_rows(spark, contract, request, past)
    counts = _count_rows(spark, contract, request, erased)
    if not any(counts.values()) and not any(run.plan.erasure and run.plan.erasure.digest == digest for run in past):
        raise _not_found_error(contract, request, erased)
    return counts


def _find_erased_rows(
    spark: SparkSession, contract: BoundContract, request: ErasureRequest, past: list[Run]
) -> ErasedRows | None:
    """Return the rows that a request is about, none of which is forgotten yet; None before the first run."""
    if not past:
        return None
    found = records.read_records(spark, contract, request, set())
    return find_erased_rows(spark, contract, request, found, past[-1].plan, past)


def _not_found_error(contract: Contract, request: ErasureRequest, erased: ErasedRows | None) -> RequestError:
    """Return the error for a key, or records, that no run has ever ingested, or that only views still have."""
    table = f"{contract.pipeline}.{request.topic}"
    if request.places:
        found, fix = (
            f"there is no record at {request.text}; nothing was written",
            f"hindcast ledger {contract.pipeline} lists the offsets of each partition",
        )
    else:
        found, fix = (
            f"there is no such key: {request.text}; nothing was written",
            f"look at how its keys are written: hindcast query {table}",
        )
    if erased is not None and (views := erased.find_redefined()):
        fix += f"; if its records were trimmed, {', '.join(views)} can still have rows of it: only removing their "
        fix += "folders, and a run, takes these away"
    return RequestError(found, where=table, fix=fix)


def _refuse_links(contract: BoundContract) -> None:
    """Raise RequestError if a link in the pipeline's folder leads to another pipeline's: its files would be purged.

    TableError for a table in the folder that is not the pipeline's own.
    """
    if tables.open_table(journal.runs_table(contract.warehouse, contract.pipeline)) is None:
        return
    folder = f"{contract.warehouse}/{contract.pipeline}"
    found = WarehouseFolder(folder)
    for link, target in found.find_links_to(contract.warehouse).items():
        raise RequestError(
            f"is a link to {target}, and forgetting removes old files from every table of the pipeline's folder",
            where=f"{folder}/{link}".removesuffix("/."),
            fix="remove the link, then forget; nothing was written",
        )
    for name in found.tables:
        purge.open_own(found, name, f"{folder}/{name}")


def _refuse_unready(contract: BoundContract, erasure: Erasure) -> None:
    """Raise RequestError if not everything can be erased now, or not be derived again afterwards."""
    topic = erasure.topic
    delta_table = tables.open_table(locate_own_table(contract, topic))
    if delta_table is not None and tables.read_older_format(delta_table) is not None:
        raise RequestError(
            "its table does not have today's store format",
            where=f"{contract.pipeline}.{topic}",
            fix=f"hindcast upgrade {contract.pipeline}.{topic}, then forget",
        )
    affected = {name for table in (topic, *erasure.formerly) for name in contract.list_tables_below(table)}
    for name in sorted(affected.intersection(contract.views)):
        if contract.views[name].semantics == "kafka":
            emission_progress.refuse_restart(contract, name)


def _read_proof(reports: Path, run: int) -> Proof:
    """Return a proof of an earlier run; raise RunError if it is not among the reports any more."""
    place = proof_path(reports, run)
    if not place.is_file():
        raise RunError(f"run {run} has forgotten it, but its proof is gone", where=str(place))
    return Proof.from_json(json.loads(place.read_text(encoding="utf-8")))


def _has_rows(spark: SparkSession, contract: BoundContract, request: ErasureRequest, erased: ErasedRows | None) -> bool:
    """Return whether there is anything to forget. Most times the log says so, and no table has to be searched."""
    if erased is not None and not erased.records.isEmpty():
        return True
    return any(_count_rows(spark, contract, request, erased).values())


def _count_rows(
    spark: SparkSession, contract: BoundContract, request: ErasureRequest, erased: ErasedRows | None
) -> dict[str, int]:
    """Return the number of rows to remove by table; none before the first run, which has no `erased` rows either.

    Kafka views lose all their rows, but only if there is something else to forget. Of a trimmed log nobody knows that.
    """
    if erased is None:
        return {}
    counts = {name: erased.find_rows(name).count() for name in erased.tables if erased.has_table(name)}
    if (adopted := records.find_adopted_records(spark, contract, request)) is not None:
        initial = initial_rows.initial_rows_table(contract.warehouse, contract.pipeline, request.topic)
        counts[initial.name] = adopted.count()
    log = tables.log_table(contract.warehouse, contract.pipeline, request.topic)
    counts[log.name] = erased.records.count()
    has_others = any(count for name, count in counts.items() if name not in erased.restarting)
    return counts if has_others or horizon.read_horizon(log) is not None else dict.fromkeys(counts, 0)
