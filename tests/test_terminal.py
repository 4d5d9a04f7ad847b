"""What commands print, and tasks log, of others' texts: nothing in it steers a terminal, or forges a line."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

import reports
from hindcast.common.errors import escape_controls
from hindcast.ops import doctor
from hindcast.ops.compare import Comparison, formatting
from hindcast.ops.erase.proof import Evidence, Proof, format_proof
from hindcast.ops.verify import verify
from hindcast.ops.verify.findings import Finding
from hindcast.quality.gate_results import GateResult
from hindcast.runs import run_preview
from hindcast.runs.change_statistics import ChangeStatistics
from hindcast.runs.run_preview import RunPreview, TablePreview

ODD = "\x1b]0;mine\x07\x9b31m\u202eend"
GATE = {"gate": 0, "expectation": "expect_it", "kwargs": {}, "on_failure": "warn", "outcome": "failed", "detail": ODD}
TABLE = {"opened": 0, "closed": 0, "corrected": 0, "held": 0, "examples": [], "gates": [GATE]}
RUN: dict[str, Any] = {"pipeline": "p", "run": 1, "runId": "r", "knownAt": "", "topics": {}, "again": "hindcast run p"}


def tell_report() -> str:
    return reports.format_report({**RUN, "reason": ODD, "tables": {"sales": TABLE}})


def tell_preview() -> str:
    gate = GateResult(0, "expect_it", {}, "warn", "failed", None, None, None, ODD)
    table = TablePreview(ChangeStatistics(0, 0, 0, {}), 0, [], [gate], {})
    known_at = datetime(2026, 1, 1, tzinfo=UTC)
    return run_preview.format_preview(RunPreview("p", known_at, None, None, None, {}, {"sales": table}))


def tell_findings() -> str:
    return verify.format_report(verify.VerifyReport("p", findings=[Finding("rows", "sales", ODD, "run", key=ODD)]))


def tell_comparison() -> str:
    return formatting.format_comparison(
        Comparison("p.v", "t", datetime(2026, 1, 1, tzinfo=UTC), 0, 1, 1, 1, [], [], (ODD,))
    )


def tell_forgotten() -> str:
    found = Evidence(0, 0, 0, 0, 0, 0, orphan_files=(ODD,), left=())
    return format_proof(Proof("p", 1, datetime(2026, 1, 1, tzinfo=UTC), "t", "", {}, (), found))


def tell_what_is_there() -> str:
    return doctor.format_report([doctor.CheckResult("settings", "ok", ODD, ODD)])


@pytest.mark.parametrize(
    "tell", [tell_report, tell_preview, tell_findings, tell_comparison, tell_forgotten, tell_what_is_there]
)
def test_no_text_of_others_steers_a_terminal(tell: Callable[[], str]) -> None:
    assert r"\x1b]0;mine\x07\x9b31m\u202eend" in tell()
    assert escape_controls(tell()) == tell()


def test_a_reason_stays_on_its_line() -> None:
    told = reports.format_report({**RUN, "reason": "late\n  all gates passed", "tables": {}})
    assert r"reason: late\n  all gates passed" in told.splitlines()
