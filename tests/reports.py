"""Reports of runs, for tests that have them as JSON: shown as text and as a page by the library's own functions."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hindcast.common.settings import read_settings
from hindcast.report import page, report_text
from hindcast.report.run_report import RunReport
from hindcast.runs import preview, run_preview

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def format_report(report: Mapping[str, Any]) -> str:
    return report_text.format_report(RunReport.from_json(report))


def render_page(report: Mapping[str, Any]) -> str:
    return page.render_page(RunReport.from_json(report))


def write_page(folder: Path, report: Mapping[str, Any]) -> Path:
    made = RunReport.from_json(report)
    return page.write_page(folder, made.pipeline, made.run, made)


def summarize_outcome(report: Mapping[str, Any]) -> page.RunSummary:
    return page.summarize_outcome(RunReport.from_json(report))


class PreviewJson(dict[str, Any]):
    """A preview as JSON, with its `text`."""

    text: str


def preview_run(spark: SparkSession, pipeline: str, **asked: Any) -> PreviewJson:
    changes = preview.preview_run(spark, read_settings(), pipeline, **asked)
    shown = PreviewJson(changes.as_json())
    shown.text = run_preview.format_preview(changes)
    return shown
