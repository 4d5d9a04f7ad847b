"""Let a pipeline take the place of another: its tables, journal, reports and contract get the other's name.

    fares, fares_by_arrival    ->    fares_replaced_1, fares

Nothing is deleted or computed. A mark in the warehouse (store/replacements.py) keeps all others away from the first
change to the last, and says what is left to do. Each step below looks whether it was done before, so the same command
finishes what a killed one began.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pydantic import TypeAdapter, ValidationError

from hindcast.common.errors import BusyError, HindcastError, PlatformError, RequestError, show_briefly
from hindcast.common.settings import Settings
from hindcast.contract import Contract
from hindcast.contract.bound import BoundContract
from hindcast.contract.folder import list_meant_pipelines, try_find, try_load_all
from hindcast.contract.types import Name
from hindcast.ops import contract_copies, replacement_checks
from hindcast.plan import journal, notices
from hindcast.plan.marks import find_bound_contract
from hindcast.plan.runs import MALFORMED
from hindcast.report import page
from hindcast.report.run_report import RunReport
from hindcast.store import replacements, table_renaming, tables
from hindcast.store.folder import WarehouseFolder
from hindcast.store.replacements import Replacement

PROPERTY = "hindcast.replaced"
"""The property of a journal with the last replacement that it came to its name by: JSON, `by` and `archive`."""


class Replaced(NamedTuple):
    """A replacement that was made; `was_done`: by an earlier command."""

    replacement: Replacement
    was_done: bool = False


def replace_pipeline(settings: Settings, pipeline: str, by: str) -> Replaced:
    """Let the pipeline `by` take the place of `pipeline`, whose tables, runs, reports and contract stay under a name of
    their own; or finish that.

    Raise RequestError, before anything is written, if it cannot; BusyError while either is run or another process
    replaces one.
    """
    if (warehouse := replacements.find_folder(settings.warehouse)) is None:
        found = "the warehouse is in an object store, where no folder can be renamed"
        fix = "copy the folders of both to a disk, replace there, copy back (docs/hindsight.md)"
        raise RequestError(found, where=settings.warehouse, fix=fix)
    if by == pipeline:
        raise RequestError("--replace names the pipeline itself", where=pipeline, fix="name the one that is rehearsed")
    begun = replacements.find_replacement(settings.warehouse, pipeline)
    if begun is None and (done := _find_done(settings, warehouse, pipeline, by)) is not None:
        return Replaced(done, was_done=True)
    if begun is None:  # before there is a mark, what makes no sense leaves no trace
        _check_replacement(settings, pipeline, by)
    with replacements.lock_replacements(warehouse):
        begun = replacements.find_replacement(settings.warehouse, pipeline)
        if begun is not None and (begun.pipeline, begun.by) != (pipeline, by):
            raise BusyError(begun.sentence, where=pipeline, fix=f"finish that first: {begun.command}")
        if begun is None or not begun.is_checked:
            begun = _begin_replacement(settings, warehouse, begun or _check_replacement(settings, pipeline, by))
        _finish_replacement(settings, warehouse, begun)
    return Replaced(begun)


def _find_done(settings: Settings, warehouse: Path, pipeline: str, by: str) -> Replacement | None:
    """Return the replacement that gave a pipeline its tables, if it was by this one, of which nothing is left."""
    delta_table = tables.open_table(journal.runs_table(settings.warehouse, pipeline))
    is_left = os.path.lexists(warehouse / by) or try_find(settings.schemas, by, settings.choice) is not None
    if delta_table is None or is_left:
        return None
    fields = tables.parse_property(delta_table, PROPERTY, json.loads) or {}
    return Replacement(pipeline, by, str(fields["archive"])) if fields.get("by") == by else None


def _check_replacement(settings: Settings, pipeline: str, by: str) -> Replacement:
    """Return the replacement; RequestError or BusyError if it cannot be made, or not now."""
    former, new = (find_bound_contract(settings, name) for name in (pipeline, by))
    contract_copies.refuse_other_changes(settings, pipeline, by)
    replacement_checks.refuse_replacement(settings, former, new)
    return _plan_replacement(settings, former, new)


def _begin_replacement(settings: Settings, warehouse: Path, planned: Replacement) -> Replacement:
    """Mark a replacement; take the marks back if something prevents it that came after it was checked."""
    names = planned.pipeline, planned.by
    replacements.mark_replacement(warehouse, planned)
    try:
        with replacements.allow_replacing():
            for name in names:
                journal.commit_nothing(settings.warehouse, name)
            checked = replace(_check_replacement(settings, *names), is_checked=True)
            for name in names:
                notices.wait_for_others(settings.warehouse, name)
    except HindcastError:
        replacements.remove_marks(warehouse, planned)
        raise
    replacements.mark_replacement(warehouse, checked)
    return checked


def _plan_replacement(settings: Settings, former: BoundContract, new: BoundContract) -> Replacement:
    """Return the replacement, with the new texts of contracts; RequestError if one cannot be renamed by itself."""
    archive = _find_name(settings, former.pipeline)
    own, others = (contract_copies.find_contract_file(settings, it.pipeline) for it in (former, new))
    contracts = {
        str(own.with_name(f"{archive}.yaml")): contract_copies.rename_pipeline(own, archive),
        str(own): contract_copies.rename_pipeline(others, former.pipeline),
        str(others): None,
    }
    renamed = (former, archive), (new, former.pipeline)
    hashes = {it.hash: it.model_copy(update={"pipeline": name}).hash for it, name in renamed}
    return Replacement(former.pipeline, new.pipeline, archive, contracts, hashes)


def _find_name(settings: Settings, pipeline: str) -> str:
    """Return the first name that is free of contracts, tables and reports: `fares_replaced_1`."""
    taken = set[str]()
    for path, contract in try_load_all(settings.schemas, settings.choice).items():
        named = {contract.pipeline} if isinstance(contract, Contract) else list_meant_pipelines(path)
        taken |= {path.stem, *named}
    for folder in (replacements.find_folder(settings.warehouse), settings.reports):
        taken |= {path.name for path in folder.glob(f"{pipeline}_replaced_*")} if folder else set()
    number = 1
    while (name := f"{pipeline}_replaced_{number}") in taken:
        number += 1
    try:
        TypeAdapter(Name).validate_python(name)
    except ValidationError:
        fix = "rehearse it into a shorter name, and use that one"
        raise RequestError(f"its name is too long for {name}", where=pipeline, fix=fix) from None
    return name


def _finish_replacement(settings: Settings, warehouse: Path, replacement: Replacement) -> None:
    """Do what is left of a replacement, step by step; PlatformError for what a disk refuses."""
    former, by, archive = replacement.pipeline, replacement.by, replacement.archive
    try:
        if not (warehouse / archive).exists():
            _rename_tables(warehouse / former, former, archive, replacement.hashes)
        if (warehouse / by).exists():
            done = {PROPERTY: json.dumps({"by": by, "archive": archive})}
            _rename_tables(warehouse / by, by, former, replacement.hashes, done)
        for folder in (warehouse, settings.reports):
            _move_folders(folder, former, by, archive)
        for path, text in replacement.contracts.items():
            if text is not None:
                contract_copies.replace_contract(Path(path), text, map(Path, replacement.contracts))
            else:
                Path(path).unlink(missing_ok=True)
        _rename_reports(settings.reports, former, archive)
        _rename_reports(settings.reports, by, former)
        replacements.remove_marks(warehouse, replacement)
    except DeltaError as error:
        fix = f"put the table that it is about back from a backup; then {replacement.command}"
        found = f"a table cannot be renamed: {show_briefly(str(error).partition(chr(10))[0])}"
        raise PlatformError(found, where=str(warehouse), fix=fix) from None
    except OSError as error:
        fix = f"remove what is in the way, or give the permission; then {replacement.command}"
        where = str(error.filename or warehouse)
        raise PlatformError(f"cannot be renamed: {error.strerror or error}", where=where, fix=fix) from None


def _rename_tables(
    folder: Path, former: str, pipeline: str, hashes: Mapping[str, str], properties: Mapping[str, str] | None = None
) -> None:
    """Give the tables in a folder to another pipeline, the journal with its entries; not those that have it already."""
    runs = journal.runs_table("", "").name
    for name in WarehouseFolder(str(folder)).tables:
        path = str(folder / name)
        if name == runs and (DeltaTable(path).metadata().name or "").startswith(f"{former}."):
            journal.rename_entries(path, former, pipeline, hashes)
        table_renaming.rename_table(path, former, pipeline, properties if name == runs else None)


def _move_folders(folder: Path, former: str, by: str, archive: str) -> None:
    """Give the folder of the former pipeline the name of the archive, then that of the new one the former's name."""
    if (folder / former).exists() and not (folder / archive).exists():
        (folder / former).rename(folder / archive)
    elif folder.exists():
        (folder / archive).mkdir(exist_ok=True)  # or else the same command would take the new one for the former
    if (folder / by).exists():
        (folder / by).rename(folder / former)


def _rename_reports(reports: Path, former: str, pipeline: str) -> None:
    """Write the pages, and the JSON, of a pipeline's reports and proofs again with its new name."""
    for path in sorted((reports / pipeline).glob("*.json")):
        with suppress(*MALFORMED):  # a report that cannot be read is of no pipeline
            fields = json.loads(path.read_text(encoding="utf-8"))
            if fields["pipeline"] != former:
                continue
            fields["pipeline"] = pipeline
            if path.stem == f"run-{fields['run']}" and path.with_suffix(".html").exists():
                page.write_page(reports, pipeline, fields["run"], RunReport.from_json(fields))
            else:
                page.replace_file(path, json.dumps(fields, indent=2))
