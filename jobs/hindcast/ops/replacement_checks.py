"""What prevents that a pipeline takes the place of another: anything that would be lost, come twice, or come back."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from hindcast.common.errors import BusyError, ContractError, PlatformError, RequestError
from hindcast.common.settings import Settings
from hindcast.contract import bounds
from hindcast.contract.bound import BoundContract
from hindcast.contract.folder import try_load_all
from hindcast.ingest import erasure_marks
from hindcast.kafka import gaps
from hindcast.kafka.topic_patterns import MemberPartition
from hindcast.plan import closes, journal, taken_offsets
from hindcast.plan.runs import Run
from hindcast.store import delta_log, duckdb_reader, tables
from hindcast.store.folder import WarehouseFolder


def refuse_replacement(settings: Settings, former: BoundContract, new: BoundContract) -> None:
    """Raise RequestError or PlatformError if a pipeline cannot take the place of the former one; BusyError if one of
    them has a run that has not ended.
    """
    _refuse_read_only(settings)
    past = {it.pipeline: journal.read_runs(settings.warehouse, it.pipeline) for it in (former, new)}
    for pipeline, runs in past.items():
        _refuse_runs(pipeline, runs)
        _refuse_damaged(f"{settings.warehouse.rstrip('/')}/{pipeline}")
    _refuse_closes(settings, former.pipeline, new.pipeline)
    _refuse_readers(settings, former.pipeline, new.pipeline)
    reached, own = (list(_list_reached(it, past[it.pipeline])) for it in (former, new))
    _refuse_behind(former.pipeline, new.pipeline, reached, own)
    _refuse_forgotten(former, new, reached, own)


def _refuse_read_only(settings: Settings) -> None:
    """Raise PlatformError if this user cannot write where something gets another name: it would end half-way."""
    for folder in (settings.schemas, Path(settings.warehouse.removeprefix("file://")), settings.reports):
        if folder.exists() and not os.access(folder, os.W_OK | os.X_OK):
            found = "this user cannot write to the folder, and what is in it gets other names"
            fix = (
                "give the permission; of contracts: pause the DAGs of both, set HINDCAST_SCHEMAS to a copy of the "
                "folder, replace, and put the copy in its place before the next run"
            )
            raise PlatformError(found, where=str(folder), fix=fix)


class _Reached(NamedTuple):
    """Up to which offset the log of an `entry` has a partition of Kafka, which has a `number` there."""

    member: MemberPartition
    entry: str
    number: int
    end: int


def _list_reached(contract: BoundContract, past: list[Run]) -> Iterator[_Reached]:
    for name in contract.topics:
        if (state := taken_offsets.find_taken(contract, name, past)) is not None and state.taken.after:
            taken, kafka = state.taken, contract.kafka_topic(name)
            for number, offsets in taken.ranges.items():
                member = taken.members.get(number, MemberPartition(kafka, number, taken.topic_id))
                yield _Reached(member, name, number, offsets.end)


def _refuse_runs(pipeline: str, past: Sequence[Run]) -> None:
    if not any(run.state == "completed" for run in past):
        raise RequestError("has no completed run", where=pipeline, fix=f"hindcast run {pipeline}")
    if (run := next((run for run in past if not run.is_finished), None)) is not None:
        fix = f"wait for it; or finish it, as it was begun; or hindcast abandon {pipeline}"
        raise BusyError(f"run {run.number} ({run.run_id}) has not ended", where=pipeline, fix=fix)


def _refuse_damaged(folder: str) -> None:
    """Raise TableError for a table that cannot be opened, so it could not get another name."""
    for name in WarehouseFolder(folder).tables:
        with tables.explain_errors(f"{folder}/{name}"), suppress(TableNotFoundError):
            for _ in delta_log.read_actions(DeltaTable(f"{folder}/{name}"), ("metaData", "txn")):
                pass


def _refuse_closes(settings: Settings, pipeline: str, by: str) -> None:
    if kept := closes.list_kept(settings.warehouse, pipeline):
        names = ", ".join(close.name for close in kept[:3]) + (" and others" if kept[3:] else "")
        found = f"has closes: {names}. They name what {pipeline} knew, and {by} knew other things"
        fix = f"close the periods in {by}, and drop these: hindcast closes {pipeline} --drop NAME --reason TEXT"
        raise RequestError(found, where=pipeline, fix=fix)


def _refuse_readers(settings: Settings, *pipelines: str) -> None:
    for path, contract in try_load_all(settings.schemas, settings.choice.for_others).items():
        if isinstance(contract, ContractError):
            if named := next((it for it in pipelines if _may_read(path, it)), None):
                found = f"names tables of {named}, and does not load: its rows may depend on what that pipeline knew"
                fix = f"correct it (hindcast check {path}) or move it away, and repeat this"
                raise RequestError(found, where=str(path), fix=fix)
            continue
        for name, source in contract.inputs.items():
            if source.table.partition(".")[0] in pipelines:
                found = f"reads {source.table}, so its rows depend on what that table knew, and when"
                fix = f"remove the input from {contract.pipeline}; read it afterwards in a pipeline of another name"
                raise RequestError(found, where=f"{contract.pipeline}.{name}", fix=fix)


def _may_read(path: Path, pipeline: str) -> bool:
    """Return whether a file that does not load may be a contract that reads tables of a pipeline."""
    try:
        return re.search(rf"\b{re.escape(pipeline)}\.\w", bounds.read_text(path)) is not None
    except (OSError, ValueError):
        return True


def _refuse_behind(pipeline: str, by: str, reached: Sequence[_Reached], own: Sequence[_Reached]) -> None:
    """Raise RequestError if the new pipeline lacks records that the former one has: its next run would read them."""
    topics = {it.member.topic for it in own}
    ends = {(it.member.topic, it.member.partition): it for it in sorted(own, key=lambda it: -it.end)}  # the least end
    for it in reached:
        topic, partition, topic_id = it.member
        if topic not in topics:
            continue  # its contract does not read it
        there = ends.get((topic, partition))
        if there is None or there.end < it.end:
            has = f"ends at offset {there.end}" if there else "has nothing of it"
            found = f"{pipeline} has {topic} [{partition}] up to offset {it.end}, and {by} {has}"
            raise RequestError(found, where=by, fix=f"hindcast run {by}, look at it, and repeat this")
        if topic_id and there.member.topic_id and topic_id != there.member.topic_id:
            found = f"{pipeline} and {by} have read different topics of the name {topic}: it was created again"
            raise RequestError(found, where=by, fix=f"rehearse {pipeline} again, under another name")


def _refuse_forgotten(
    former: BoundContract, new: BoundContract, reached: Sequence[_Reached], own: Sequence[_Reached]
) -> None:
    """Raise RequestError if the new pipeline's logs have a record that the former pipeline has forgotten."""
    for it in reached:
        offsets = _find_offsets(former, it, f"{erasure_marks.MARK} IS NOT NULL", needs_mark=True)
        for there in own if offsets else ():
            if there.member[:2] != it.member[:2]:
                continue
            if left := _find_offsets(new, there, f"fate NOT IN {gaps.GAP_FATES}", offsets):
                place = f"{new.pipeline}.{there.entry}, {it.member.topic} [{it.member.partition}], offset {left[0]}"
                found = f"{former.pipeline} has forgotten the key of this record, and {new.pipeline} has not"
                fix = f"hindcast forget {new.pipeline}.{there.entry} with the key, and repeat this"
                raise RequestError(found, where=place, fix=fix)


def _find_offsets(
    contract: BoundContract,
    place: _Reached,
    condition: str,
    among: Sequence[int] | None = None,
    *,
    needs_mark: bool = False,
) -> list[int]:
    """Return offsets of a partition in a log, in order, whose rows meet a condition; not forgotten ones if `among`."""
    log = tables.open_table(tables.log_table(contract.warehouse, contract.pipeline, place.entry))
    kept = erasure_marks.not_forgotten_sql(log)
    if log is None or (needs_mark and kept == "true"):
        return []
    with duckdb_reader.open_engine(log) as engine:
        duckdb_reader.register_rows(engine, log)
        if among is not None:
            engine.register("among", pa.table({"o": pa.array(among, pa.int64())}))
            condition += f' AND {kept} AND "offset" IN (FROM among)'
        text = f'SELECT "offset" FROM rows WHERE "partition" = ? AND {condition} ORDER BY 1'  # noqa: S608  # own names
        return [offset for (offset,) in engine.sql(text, params=[place.number]).fetchall()]
