"""A warehouse that cannot be written, wholly or in part: questions are answered, runs say why they fail, and nothing is
half written. Processes here heed the rights of files, also where root would pass over them.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from hindcast.contract import find
from hindcast.plan import journal
from hindcast.plan.runs import Run
from pipelines import SEED, at, pipeline, tell
from warehouses import plan, shop

COMMANDS = """
import os, subprocess, sys
from fastapi.testclient import TestClient
from hindcast.cli.main import main
from hindcast.cli.commands import running
from hindcast.airflow.pages.access import PageAccess
from hindcast.airflow.pages.routes import build_app
from hindcast.common.session import open_session

access = PageAccess(lambda: None, lambda dag_id: None, lambda: frozenset(["shop"]))
pages = TestClient(build_app(access), raise_server_exceptions=False)
small = {"spark.master": "local[2]", "spark.driver.memory": "1g"}
running.session_of = lambda _: open_session("read-only", small, small=True)
for line in sys.argv[1:]:
    print(f"$ {line}", flush=True)
    if line.startswith("chmod "):
        print("exit", subprocess.run(line.replace("WAREHOUSE", os.environ["HINDCAST_WAREHOUSE"]).split()).returncode)
    elif line.startswith("/"):
        print("answer", pages.get(line).status_code, flush=True)
    else:
        print("exit", main(line.split()), flush=True)
"""
"""Does each line: a command of ours, an address of the pages, or chmod; says how it ended."""


def heed_rights() -> None:
    """Give up what lets root write and read where nobody may, before a program is executed.

    CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH leave the bounding set.
    """
    for capability in (1, 2) if os.geteuid() == 0 else ():
        assert ctypes.CDLL(None).prctl(24, capability, 0, 0, 0) == 0


def do_lines(lines: list[str], environ: dict[str, str]) -> list[tuple[str, str]]:
    """Return each line with what it said on stdout and stderr, the way that it ended last."""
    done = subprocess.run(
        [sys.executable, "-c", COMMANDS, *lines],
        env={**os.environ, **environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        preexec_fn=heed_rights,  # it calls the kernel, and nothing of Python's threads
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=500,
        check=False,
    )
    said = [part.partition("\n") for part in f"\n{done.stdout}".split("\n$ ")[1:]]
    assert [line for line, *_ in said] == lines, done.stdout
    assert done.returncode == 0, done.stdout
    return [(line, text) for line, _, text in said]


def list_files(folder: Path) -> dict[str, tuple[int, int]]:
    """Return all files under a folder with their sizes and when they were written."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in files}


ANSWERED = [
    *("query shop.prices", "history shop.bills", "runs shop", "report shop 2", "failing shop", "quarantine shop"),
    *("ledger shop", "check", "maintain shop --dry-run"),
]
PAGES = ["/quality/shop", "/ledger/shop", "/machine/shop?table=prices&key=naan"]
REFUSED = ["abandon shop", "ledger shop --rebuild"]
CANNOT = "this user cannot write here: the warehouse is read-only, or belongs to another user"


@pytest.mark.long
@pytest.mark.ci
def test_questions_are_answered_and_what_would_write_says_why_it_cannot(tmp_path: Path) -> None:
    with shop(tmp_path) as now:
        journal.append_entry(now.warehouse, Run(replace(plan(find(now.schemas, "shop"), 2), run=3, run_id="third")))
        before = list_files(Path(now.warehouse))
        said = dict(do_lines(["chmod -R a-w WAREHOUSE", *ANSWERED, *PAGES, *REFUSED, "doctor"], now.environment))
        said |= dict(do_lines(["chmod -R u+w WAREHOUSE"], now.environment))
        assert list_files(Path(now.warehouse)) == before
    assert {line: text.splitlines()[-1] for line, text in said.items()} == {
        **dict.fromkeys(["chmod -R a-w WAREHOUSE", *ANSWERED, "chmod -R u+w WAREHOUSE"], "exit 0"),
        **dict.fromkeys(PAGES, "answer 200"),
        **dict.fromkeys([*REFUSED, "doctor"], "exit 1"),
    }
    for line in REFUSED:
        first, fix, _ = said[line].splitlines()
        assert first == f"hindcast: {now.warehouse}/shop/runs: {CANNOT}"
        assert fix.startswith("  what to do: give this user, and the one that Spark runs as, the right to write")
    assert f"{now.warehouse} cannot be written: Permission denied" in said["doctor"]


@pytest.mark.long
def test_a_run_that_may_not_write_says_so_and_is_finished_when_it_may(broker: str, tmp_path: Path) -> None:
    """Nothing may be written; then all but one table; then all but the log of another."""
    with pipeline(None, broker, tmp_path) as p:
        tell(p, SEED)
        for price, second in ((9, 2), (11, 3)):
            line = {"key": "curry", "value": {"price": price}, "timestamp": at(second).isoformat()}
            (tmp_path / f"{price}.jsonl").write_text(json.dumps(line))
        run, whole = "run restaurant", "verify restaurant --quick"
        nine, eleven = (f"produce {p.kafka('menu')} {tmp_path}/{price}.jsonl" for price in (9, 11))
        folder, query, writable = f"{p.warehouse}/restaurant", "query restaurant.bills", "chmod -R u+w WAREHOUSE"
        nothing = ["chmod -R a-w WAREHOUSE", "preview restaurant", query, run, writable]
        no_menu = [f"chmod -R a-w {folder}/menu", run, query, writable, run]
        no_log = [f"chmod -R a-w {folder}/bills/_delta_log", run, "doctor", whole, writable, run, whole]
        said = do_lines([run, nine, *nothing, *no_menu, eleven, *no_log], p.environ)
        ends = [text.splitlines()[-1] for line, text in said if line == run]
        assert ends == ["exit 0", "exit 1", "exit 1", "exit 0", "exit 1", "exit 0"], said
        refused = [text for line, text in said if line == run and text.endswith("exit 1")]
        places = [text.partition("hindcast: ")[2].partition(f": {CANNOT}\n")[0] for text in refused]
        assert places == [f"{folder}/runs", f"{folder}/menu", f"{folder}/bills/_delta_log"]
        assert {text.splitlines()[-1] for line, text in said if line in (whole, "preview restaurant")} == {"exit 0"}
        (doctor,) = (text for line, text in said if line == "doctor")
        assert f"{folder}/bills/_delta_log cannot be written" in doctor
        first, second = (text for line, text in said if line == query)
        assert first == second, "what was published before, until the run that was planned has ended"
        assert p.states() == [(1, "completed"), (2, "completed"), (3, "completed")]
        assert p.fates("menu") == [(offset, "accepted") for offset in range(5)]
        assert p.believed("bills") == [("anna", "curry", 8, 1), ("bob", "curry", 20, 5), ("candace", "curry", 33, 3)]
