"""Great Expectations' Data Docs of a run: its gates as the pages that people know from there."""

from __future__ import annotations

import html
from datetime import datetime
from pathlib import Path
from typing import Any

from hindcast import rights
from hindcast.contracts import Contract, Expectation
from hindcast.errors import PlatformError
from hindcast.quality.expectations import described, imported


def build(contract: Contract, report: dict[str, Any], folder: Path) -> Path:
    """Builds the site of a run's report (report.make) in a folder; returns its first page.

    One validation result for each table that has gates: what was checked, and what was observed. Examples of failing
    rows are in none; `hindcast failing` lists all of them. The pages load their style from where Great Expectations
    has it: offline they are plain.
    """
    place = _make(folder)
    imported()
    import great_expectations as gx
    from great_expectations.core import ExpectationSuiteValidationResult, ExpectationValidationResult
    from great_expectations.core.run_identifier import RunIdentifier
    from great_expectations.data_context.types.resource_identifiers import (
        ExpectationSuiteIdentifier,
        ValidationResultIdentifier,
    )

    context = gx.get_context(mode="ephemeral")
    backend = {"class_name": "TupleFilesystemStoreBackend", "base_directory": place}
    context.add_data_docs_site(
        "hindcast",
        {"class_name": "SiteBuilder", "store_backend": backend, "site_index_builder": {"class_name": _INDEX}},
    )
    for name, table in report["tables"].items():
        if not table["gates"]:
            continue
        suite = f"{report['pipeline']}.{name}"
        results = [
            ExpectationValidationResult(
                success=gate["outcome"] == "passed",
                expectation_config=described(
                    contract, name, Expectation(type=gate["expectation"], kwargs=_escape(gate["kwargs"]))
                ),
                result=_result(gate),
                exception_info={
                    "raised_exception": gate["outcome"] == "error",
                    "exception_message": gate["detail"],
                    "exception_traceback": "",
                },
            )
            for gate in table["gates"]
        ]
        passed = sum(bool(result.success) for result in results)
        told = ExpectationSuiteValidationResult(
            success=passed == len(results),
            results=results,
            suite_name=suite,
            statistics={
                "evaluated_expectations": len(results),
                "successful_expectations": passed,
                "unsuccessful_expectations": len(results) - passed,
                "success_percent": 100 * passed / len(results),
            },
            meta={"run_id": RunIdentifier(report["runId"], datetime.fromisoformat(report["knownAt"]))},
        )
        key = ValidationResultIdentifier(ExpectationSuiteIdentifier(suite), told.meta["run_id"], suite)
        context.validation_results_store.add(key, told)
    try:
        context.build_data_docs(site_names=["hindcast"])
    except OSError as error:
        raise PlatformError(**rights.explain(error, folder, "written")) from None
    return folder / "index.html"


def _escape(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters of a gate with those escaped that Great Expectations puts into its pages as HTML."""
    return {name: html.escape(it) if name in _AS_HTML and isinstance(it, str) else it for name, it in kwargs.items()}


_AS_HTML = ("description", "notes")


def _make(folder: Path) -> str:
    """Make the folder; return its path as Great Expectations takes it, which replaces `$NAME` in what it is given."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        is_foreign = any(folder.iterdir()) and not (folder / _OWN).exists()
    except (FileExistsError, NotADirectoryError):
        raise PlatformError("is not a folder", where=str(folder), mend="name a folder for the Data Docs") from None
    except OSError as error:
        raise PlatformError(**rights.explain(error, folder, "written")) from None
    if is_foreign:
        found = "has files that are no Data Docs, and index.html and static/ would be written among them"
        raise PlatformError(found, where=str(folder), mend="name a new or an empty folder, or one of Data Docs")
    return str(folder.absolute()).replace("$", r"\$")


_OWN = "static/styles/data_docs_default_styles.css"
"""A file that all Data Docs have."""

_INDEX = "DefaultSiteIndexBuilder"


def _result(gate: dict[str, Any]) -> dict[str, Any]:
    """What a gate found, as Great Expectations writes it."""
    if gate["failing"] is None:
        return {"observed_value": gate["observed"] if gate["outcome"] != "unchecked" else gate["detail"]}
    checked = gate["checked"] or 0
    share = 100 * gate["failing"] / checked if checked else 0.0
    return {"element_count": checked, "unexpected_count": gate["failing"], "unexpected_percent": share}
