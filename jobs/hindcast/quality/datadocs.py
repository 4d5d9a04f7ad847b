"""Great Expectations' Data Docs of a run: its gates as the pages that people know from there."""

from __future__ import annotations

import html
import shutil
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path

from hindcast.common import permissions
from hindcast.common.errors import PlatformError
from hindcast.common.json_values import JsonObject, JsonValue
from hindcast.contract import Contract, Expectation
from hindcast.quality.expectations import describe_gate, import_gx
from hindcast.quality.gate_results import GateResult


def build_site(
    contract: Contract, run_id: str, known_at: datetime, gates: Mapping[str, Sequence[GateResult]], folder: Path
) -> Path:
    """Write the site of a run's gate results, by table, into a folder; return the path of its first page.

    One validation result for each table that has gates: what was checked and what was observed. It has no failing rows;
    `hindcast failing` lists them. The pages load their style from Great Expectations' site, so they are plain offline.
    PlatformError if the folder cannot be written or has other files.
    """
    path = _make_folder(folder)
    import_gx()
    import great_expectations as gx
    from great_expectations.core import ExpectationSuiteValidationResult, ExpectationValidationResult
    from great_expectations.core.run_identifier import RunIdentifier
    from great_expectations.data_context.types.resource_identifiers import (
        ExpectationSuiteIdentifier,
        ValidationResultIdentifier,
    )

    context = gx.get_context(mode="ephemeral")
    backend = {"class_name": "TupleFilesystemStoreBackend", "base_directory": path}
    context.add_data_docs_site(
        "hindcast",
        {"class_name": "SiteBuilder", "store_backend": backend, "site_index_builder": {"class_name": _INDEX}},
    )
    for name, own in gates.items():
        if not own:
            continue
        suite = f"{contract.pipeline}.{name}"
        results = [
            ExpectationValidationResult(
                success=gate.outcome == "passed",
                expectation_config=describe_gate(
                    contract, name, Expectation(type=gate.expectation, kwargs=_escape(gate.kwargs))
                ),
                result=_format_result(gate),
                exception_info={
                    "raised_exception": gate.outcome == "error",
                    "exception_message": gate.detail,
                    "exception_traceback": "",
                },
            )
            for gate in own
        ]
        passed = sum(bool(result.success) for result in results)
        validation = ExpectationSuiteValidationResult(
            success=passed == len(results),
            results=results,
            suite_name=suite,
            statistics={
                "evaluated_expectations": len(results),
                "successful_expectations": passed,
                "unsuccessful_expectations": len(results) - passed,
                "success_percent": 100 * passed / len(results),
            },
            meta={"run_id": RunIdentifier(run_id, known_at)},
        )
        key = ValidationResultIdentifier(ExpectationSuiteIdentifier(suite), validation.meta["run_id"], suite)
        context.validation_results_store.add(key, validation)
    try:
        context.build_data_docs(site_names=["hindcast"])
    except OSError as error:
        raise PlatformError(**permissions.explain_error(error, folder, "written")) from None
    return folder / "index.html"


def remove_sites(reports: Path) -> None:
    """Remove the Data Docs that stand beside the reports of a pipeline's runs (`run-3/`)."""
    for page in reports.glob(f"run-*/{_OWN_FILE}"):
        shutil.rmtree(reports / page.relative_to(reports).parts[0])


def _escape(kwargs: JsonObject) -> dict[str, JsonValue]:
    """Return the parameters of a gate; those that Great Expectations puts into its pages as HTML are escaped."""
    return {
        name: html.escape(value) if name in _HTML_PARAMETERS and isinstance(value, str) else value
        for name, value in kwargs.items()
    }


_HTML_PARAMETERS = ("description", "notes")


def _make_folder(folder: Path) -> str:
    """Create the folder; return its path with `$` escaped: Great Expectations replaces `$NAME` in paths."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        is_foreign = any(folder.iterdir()) and not (folder / _OWN_FILE).exists()
    except (FileExistsError, NotADirectoryError):
        raise PlatformError("is not a folder", where=str(folder), fix="name a folder for the Data Docs") from None
    except OSError as error:
        raise PlatformError(**permissions.explain_error(error, folder, "written")) from None
    if is_foreign:
        problem = "has files other than Data Docs, and index.html and static/ would be written among them"
        raise PlatformError(problem, where=str(folder), fix="name a new or an empty folder, or one with Data Docs")
    return str(folder.absolute()).replace("$", r"\$")


_OWN_FILE = "static/styles/data_docs_default_styles.css"
"""A file that all Data Docs have."""

_INDEX = "DefaultSiteIndexBuilder"


def _format_result(gate: GateResult) -> dict[str, JsonValue]:
    """Return what a gate found in the form of Great Expectations' results."""
    if gate.failing is None:
        return {"observed_value": gate.observed if gate.outcome != "unchecked" else gate.detail}
    checked = gate.checked or 0
    share = 100 * gate.failing / checked if checked else 0.0
    return {"element_count": checked, "unexpected_count": gate.failing, "unexpected_percent": share}
