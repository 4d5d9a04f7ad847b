"""The help of the command line, what it says without a command, and how a shell completes it."""

from __future__ import annotations

import csv
import io
import json
import os
import shlex
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

from hindcast import __version__
from hindcast.cli import main
from hindcast.cli.arguments import build_parser, parse_arguments
from hindcast.cli.commands import shared
from hindcast.cli.help import EXAMPLES, GROUPS
from hindcast.plan import journal
from hindcast.plan.runs import Run
from hindcast.query import show
from warehouses import RUNS, shop

CELLAR = "pipeline: cellar\nstart: 2026-01-01\ntopics:\n  menu: {read: table, key: {k: string}, value: {v: int}}\n"


def test_every_command_is_in_one_group_and_has_an_example_that_it_takes() -> None:
    listed = [name for names in GROUPS.values() for name in names]
    parser = build_parser()
    assert sorted(listed) == sorted(EXAMPLES) == sorted(parser.summaries)
    for name, example in EXAMPLES.items():
        words = shlex.split(example.removeprefix("source <(").rstrip(")"))
        words = words[: words.index(">")] if ">" in words else words
        assert parse_arguments(words[1:]).command.__name__ == name


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_the_help_fits_the_terminal(
    columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    with pytest.raises(SystemExit):
        main.main(["--help"])
    lines = capsys.readouterr().out.splitlines()
    assert all(len(line) <= columns for line in lines[1:])
    assert {line.split()[0] for line in lines if line.startswith("  ") and line[2] != " "} == {*EXAMPLES}


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main.main(["--version"])
    assert capsys.readouterr().out == f"hindcast {__version__}\n"


def test_a_mistyped_command_gets_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main.main(["quer\x1b"])
    assert stopped.value.code == 2
    error = capsys.readouterr().err
    assert "did you mean 'query'?" in error
    assert "\x1b" not in error


def test_without_a_command_it_says_what_is_there_and_what_comes_next(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def overview() -> str:
        assert main.main([]) == 0
        return capsys.readouterr().out

    with shop(tmp_path, CELLAR) as settings:
        said = overview()
        assert said.startswith(f"hindcast {__version__}, contracts in {settings.schemas}")
        assert "  cellar           no run yet\n" in said
        assert f"  shop             run 2 completed, known at {RUNS[1]:%Y-%m-%d %H:%M} UTC\n" in said
        assert "\nnext: hindcast run cellar\n" in said
        (settings.schemas / "cellar.yaml").unlink()
        assert "\nnext: hindcast query shop." in overview()
        plan = replace(journal.read_runs(settings.warehouse, "shop")[-1].plan, run=3, known_at=RUNS[1] + timedelta(1))
        with monkeypatch.context() as patch:
            past = journal.read_runs(settings.warehouse, "shop")
            patch.setattr(journal, "read_runs", lambda *_: [*past, Run(plan)])
            assert "  shop             run 3 has not ended" in overview()
            assert "\nnext: hindcast run shop\n" in overview()
        (settings.schemas / "cellar.yaml").write_text("pipeline: cellar\nviews: [", encoding="utf-8")
        said = overview()
        assert "  cellar           its contract does not load\n" in said
        assert "\nnext: hindcast check\n" in said
        for path in settings.schemas.iterdir():
            path.unlink()
        assert "  no contract yet\nnext: hindcast init shop\n" in overview()
        settings.schemas.rmdir()
        assert "  no contract yet\nnext: hindcast init shop\n" in overview()
        with monkeypatch.context() as patch:
            patch.setenv("HINDCAST_WAREHOUSE", f"{tmp_path}/\x1b]0;taken\x07")
            assert f"tables in {tmp_path}/\\x1b]0;taken\\x07\n" in overview()


COMPLETE = """
source <(hindcast completion bash)
COMP_LINE=$1 COMP_POINT=${#1} COMP_TYPE=9 COMP_WORDS=($1)
_python_argcomplete hindcast
printf '%s\\n' "${COMPREPLY[@]}"
"""


def complete(line: str) -> list[str]:
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    command = ["bash", "-c", COMPLETE, "complete", line]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.long
@pytest.mark.ci
def test_a_shell_completes_commands_contracts_tables_and_runs(tmp_path: Path) -> None:
    with shop(tmp_path, CELLAR) as settings:
        (settings.schemas / "cellar.yaml").write_text("pipeline: cellar\nviews: [", encoding="utf-8")
        assert complete("hindcast q") == ["quarantine", "query"]
        assert complete("hindcast run ") == ["cellar", "shop"]
        assert complete("hindcast query sh") == ["shop."]
        assert complete("hindcast query shop.p") == ["shop.prices", "shop.people"]
        assert complete("hindcast report shop ") == ["1", "2"]
        assert complete("hindcast query shop.bills --known") == ["--known-at"]
        assert complete("hindcast query nowhere.") == complete("hindcast report nowhere ") == []


def test_csv_for_spreadsheets_has_no_formulas() -> None:
    formulas = ["=cmd|calc!A0", "+1+cmd", "-2+3", "@SUM(1)", " =1", "\ufeff=1", "\xa0=1", "＝1"]  # noqa: RUF001
    parts = {
        "x;=1": "x;'=1", "x\t=1": "x\t'=1", "x\n +1": "x\n' +1", "x\r@1": "x\r'@1", 'x;"=1': "x;'\"=1",
        "=1;-2": "'=1;'-2", "\t=1": "'\t'=1", "x;;=1": "x;;'=1",
    }  # fmt: skip
    fine = ["naan", "a=b", "'=1", "", None, "a - b", "***", "5"]
    rows = pa.table(
        {
            "text": [*formulas, *parts, *fine],
            "number": pa.array([-5] * 24),
            "price": pa.array([Decimal("-5.00")] * 24),
            "rate": [-5.5] * 24,
            "nested": [["a;=1"]] * 24,
        }
    )
    read = list(csv.DictReader(io.StringIO(show.as_csv(rows, for_spreadsheets=True), newline="")))
    disarmed = [*(f"'{text}" for text in formulas), *parts.values()]
    assert [row["text"] for row in read] == [*disarmed, *(text or "" for text in fine)]
    assert {(row["number"], row["price"], row["rate"], row["nested"]) for row in read} == {
        ("-5", "-5.00", "-5.5", '["a;\'=1"]')
    }
    plain = list(csv.DictReader(io.StringIO(show.as_csv(rows), newline="")))
    assert [row["text"] for row in plain] == [*formulas, *parts, *(text or "" for text in fine)], (
        "a program gets the values"
    )


def test_rows_as_csv_are_read_back(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    rows = pa.table(
        {
            "text": ['a,"b"\nc', "", "x\ry"],
            "number": pa.array([Decimal("1.50"), None, Decimal("-0.01")], pa.decimal128(8, 2)),
            "at": [datetime(2026, 1, 1, tzinfo=UTC), None, None],
            "nested": [{"x": [1, None]}, None, None],
            "\x1b[31m": [True, False, None],
        }
    )
    read = list(csv.DictReader(io.StringIO(show.as_csv(rows))))
    assert [row["text"] for row in read] == ['a,"b"\nc', "", "x\ry"]
    assert show.as_csv(pa.table({"a": ["", None]})) == 'a\n""\n\n', "an empty text is not null"
    assert [row["number"] for row in read] == ["1.50", "", "-0.01"]
    assert read[0]["at"] == "2026-01-01T00:00:00+00:00"
    assert json.loads(read[0]["nested"]) == {"x": [1, None]}
    assert [row["\x1b[31m"] for row in read] == ["true", "false", ""]
    shared.print_rows(rows, "csv")
    assert "\x1b" in capsys.readouterr().out, "a file gets what is there"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    shared.print_rows(rows, "csv")
    assert "\x1b" not in capsys.readouterr().out, "a terminal is not steered"


def test_rows_that_are_wider_than_the_terminal_have_a_line_for_each_value(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = pa.table({"item": ["curry", "naan"], "note": ["n" * 30, None]})
    aligned = show.format_aligned(rows)
    monkeypatch.setenv("COLUMNS", "36")
    shared.print_rows(rows, "table")
    assert capsys.readouterr().out == f"{aligned}\n", "a file has no width"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    shared.print_rows(rows, "table")
    rule = "-" * 21
    expected = [
        f"-- 1 of 2 rows {rule}",
        "item  curry",
        f"note  {'n' * 30}",
        f"-- 2 of 2 rows {rule}",
        "item  naan",
        "note  -",
    ]
    assert capsys.readouterr().out.splitlines() == expected
    monkeypatch.setenv("COLUMNS", "37")
    shared.print_rows(rows, "table")
    assert capsys.readouterr().out == f"{aligned}\n"
    shared.print_rows(rows.slice(0, 0), "table")
    assert capsys.readouterr().out.endswith("(0 rows)\n")
