"""`hindcast verify`: nothing is wrong with a healthy pipeline; each seeded corruption is found, told, and mended."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, write_deltalake

from hindcast.cli import main
from hindcast.common.errors import PlatformError
from hindcast.common.settings import read_settings
from hindcast.ingest import requeue
from hindcast.ops.erase import row_removal
from hindcast.ops.verify import definition
from hindcast.ops.verify.rectangles import FOREVER, Rectangle, find_overlap
from hindcast.ops.verify.verify import VerifyReport, format_report, verify_tables
from hindcast.plan import journal
from hindcast.plan.runs import Run
from hindcast.runs import special_runs
from hindcast.store import tables
from hindcast.store.tables import Table
from pipelines import SEED, Pipeline, cloned, pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONTRACT = """
pipeline: verified
start: 2026-01-01
topics:
  menu:
    read: table
    key: {item: string}
    value: {price: int}
    history_retention: 10 seconds
    max_malformed: 9
    max_record_bytes: 60
  orders:
    read: stream
    key: {customer: string}
    value: {item: string, quantity: int}
views:
  bills:
    stream: orders
    join: {table: menu, on: item}
    select: {item: orders.item, amount: quantity * price}
    expect:
      - expect_column_values_to_be_between: {column: amount, max_value: 100}
        on_failure: quarantine
  sold:
    stream: orders
    aggregate: {n: sum(quantity)}
    group_by: {item: item}
    window: {session: 2 seconds}
  told:
    stream: orders
    join: {table: menu, on: item}
    select: {item: orders.item, amount: quantity * price}
    semantics: kafka
"""
CONTRACTS = {"few": CONTRACT.partition("  sold:")[0], "all": CONTRACT}


def later(text: str) -> str:
    """The contract from the second run on."""
    text = text.replace("10 seconds", "60 seconds").replace("{price: int}", "{price: int, note: string}")
    return text.replace("max_record_bytes: 60", "max_record_bytes: 600")


@dataclass(frozen=True)
class Healthy:
    """The pipeline after its runs, and what was found after each of them."""

    p: Pipeline
    found: list[list[str]]


@pytest.fixture(scope="module", params=[pytest.param("few", marks=[pytest.mark.long, pytest.mark.ci])])
def healthy(
    spark: SparkSession, broker: str, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Healthy]:
    """With few views, or all. Refused, expired and late records, two partitions; then a changed contract (a column, a
    retention, a limit), a bill that is held; then a requeue.
    """
    written = CONTRACTS[request.param]
    with pipeline(spark, broker, tmp_path_factory.mktemp("verified"), written, partitions=2) as p:
        found = []
        p.send("menu", *SEED["menu"], ("cake", b"{", 4), (None, {"price": 1}, 4))
        p.send(
            "menu", ("soup", {"price": 6}, 30), ("soup", {"price": 4}, 3), ("tea", {"price": 2, "note": "x" * 60}, 1)
        )
        p.send("orders", *SEED["orders"])
        p.run()
        found.append(checks(verified(p)))
        p.write(later(written))
        p.send("menu", ("curry", {"price": 9}, 2), ("cake", {"price": 3}, 1), ("soup", None, 40))
        p.send("orders", ("eve", {"item": "curry", "quantity": 99}, 6), ("fay", {"item": "tea", "quantity": 1}, 7))
        p.run()
        found.append(checks(verified(p)))
        special_runs.run_requeue(spark, read_settings(), p.name, "again", requeue.build_request(p.contract))
        found.append(checks(verified(p)))
        yield Healthy(p, found)


@pytest.fixture
def copy(healthy: Healthy, tmp_path: Path) -> Pipeline:
    """Its tables, to break."""
    return cloned(healthy.p, tmp_path)


def verified(p: Pipeline, name: str | None = None) -> VerifyReport:
    return verify_tables(p.contract, name)


def checks(told: VerifyReport) -> list[str]:
    return [f"{it.check}: {it.table}" for it in told.findings]


def delta(p: Pipeline, name: str) -> DeltaTable:
    return DeltaTable(f"{p.warehouse}/{p.name}/{name}")


def file(p: Pipeline, name: str) -> Path:
    return Path(delta(p, name).file_uris()[0].removeprefix("file://"))


def copied(p: Pipeline, name: str, which: pc.Expression, **changed: Any) -> None:
    """Appends a copy of the first such row, changed."""
    found = delta(p, name)
    row = found.to_pyarrow_table().filter(which).slice(0, 1).to_pylist()[0] | changed
    schema = pa.schema(found.schema().to_arrow())
    write_deltalake(found, pa.Table.from_pylist([row], schema=schema), mode="append")


def update(p: Pipeline, name: str, where: str, **to: str) -> None:
    assert delta(p, name).update(updates=to, predicate=where)["num_updated_rows"]


def delete(p: Pipeline, name: str, where: str) -> None:
    assert delta(p, name).delete(where)["num_deleted_rows"]


def old_copy(p: Pipeline, name: str) -> None:
    """A table without its last commit, as a backup has it."""
    folder = Path(p.warehouse, p.name, name, "_delta_log")
    for of_it in folder.glob(f"*{delta(p, name).version():020}.*"):
        of_it.unlink()


def emptied(p: Pipeline, view: str) -> None:
    """Empties a kafka view as repeats of forget runs did that were killed after they had processed it."""
    assert p.spark is not None
    state = max(Path(p.warehouse, p.name, "kept", view).iterdir())
    every = [Table(p.warehouse, p.name, name, "log") for name in (f"emitted/{view}", view, f"kept/{view}/{state.name}")]
    run = tables.read_last_run(every[0])
    for table in every:
        row_removal.empty_table(p.spark, table, run)


def within(p: Pipeline, log: str) -> str:
    """The condition of a record amid those of a partition."""
    rows = delta(p, log).to_pyarrow_table().to_pylist()
    partition = next(row["partition"] for row in rows if row["offset"] == 2)
    return f'"partition" = {partition} AND "offset" = 1'


def last(p: Pipeline, log: str) -> str:
    """The condition of the last record of a partition."""
    rows = delta(p, log).to_pyarrow_table().sort_by([("run", "descending"), ("offset", "descending")]).to_pylist()
    return f'"partition" = {rows[0]["partition"]} AND "offset" = {rows[0]["offset"]}'


BELIEVED = "item = 'curry' AND systemTo IS NULL"
OPEN = (pc.field("item") == "curry") & pc.field("systemTo").is_null() & pc.field("validTo").is_null()
OPEN_SQL = f"{BELIEVED} AND validTo IS NULL"
SECOND = "INTERVAL '1 second'"
RESTORE = "deltalake import DeltaTable"
BACKUP = "back from a backup"


@dataclass(frozen=True)
class Case:
    """A corruption, and the one finding that it is told by: check, table, words of it, and of what is to be done."""

    corrupt: Callable[[Pipeline], object]
    check: str
    table: str
    found: str
    fix: str


CASES = {
    "missing file": Case(
        lambda p: file(p, "bills").unlink(), "files", "bills", "1 file is missing: it has", "run verified --only bills"
    ),
    "truncated file": Case(
        lambda p: file(p, "menu").write_bytes(file(p, "menu").read_bytes()[:-9]),
        *("files", "menu", "1 file is cut or overwritten: it has", BACKUP),
    ),
    "overwritten file": Case(
        lambda p: file(p, "orders").write_bytes(b"\0" * file(p, "orders").stat().st_size),
        *("files", "orders", "1 file is unreadable: ", BACKUP),
    ),
    "missing file of the log": Case(
        lambda p: file(p, "logs/menu").unlink(),
        "files",
        "logs/menu",
        "1 file is missing",
        "replays what Kafka still has",
    ),
    "missing table": Case(
        lambda p: shutil.rmtree(Path(p.warehouse, p.name, "orders")),
        *("published", "orders", "is not there, and run 2 has published it", BACKUP),
    ),
    "another mark": Case(
        lambda p: delta(p, "bills").alter.set_table_description('{"hindcast": 1, "kind": "versions", "key": []}'),
        *("format", "bills", "is marked as versions, not events", BACKUP),
    ),
    "a newer format": Case(
        lambda p: delta(p, "bills").alter.set_table_description('{"hindcast": 99, "kind": "events", "key": []}'),
        *("format", "bills", "has store format 99", "use a newer Hindcast"),
    ),
    "overlapping rectangle": Case(
        lambda p: update(p, "menu", f"{BELIEVED} AND validTo IS NOT NULL", validTo=f"validTo + {SECOND}"),
        *("tiling", "menu", "1 key with rows that overlap: true and current at the same time", RESTORE),
    ),
    "empty valid period": Case(
        lambda p: update(p, "menu", f"{BELIEVED} AND validTo IS NOT NULL", validTo="validFrom"),
        *("tiling", "menu", "2 rows with an empty valid period", RESTORE),
    ),
    "empty system period": Case(
        lambda p: update(p, "menu", "systemTo IS NOT NULL", systemTo="systemFrom"),
        *("tiling", "menu", "with an empty system period", RESTORE),
    ),
    "orphaned start": Case(
        lambda p: update(p, "bills", "customer = 'bob' AND systemTo IS NULL", systemFrom=f"systemFrom + {SECOND}"),
        *("system period", "bills", "which is the known-at of no run", RESTORE),
    ),
    "orphaned end": Case(
        lambda p: update(p, "menu", "systemTo IS NOT NULL", systemTo=f"systemTo + {SECOND}"),
        *("system period", "menu", "with systemTo 20", RESTORE),
    ),
    "two open rows": Case(
        lambda p: copied(p, "menu", OPEN, price=7, validFrom=pa.scalar(0, pa.timestamp("us", "UTC")).as_py()),
        *("tiling", "menu", "1 key with two open rows", RESTORE),
    ),
    "an event twice": Case(
        lambda p: copied(p, "orders", pc.field("customer") == "bob"),
        *("tiling", "orders", "1 row twice at the same system time", RESTORE),
    ),
    "wrong belief": Case(
        lambda p: update(p, "menu", OPEN_SQL, _belief="'past'"),
        *("belief", "menu", "1 row with a _belief that its periods contradict", RESTORE),
    ),
    "deleted rows": Case(
        lambda p: delete(p, "menu", "systemTo IS NOT NULL"),
        *("published", "menu", "run 2 closed", RESTORE),
    ),
    "restored to an older version": Case(
        lambda p: delta(p, "menu").restore(delta(p, "menu").version() - 1),
        *("published", "menu", "run 3 opened", RESTORE),
    ),
    "an old copy": Case(
        lambda p: old_copy(p, "menu"),
        *(
            "published",
            "menu",
            "stands as run 2 left it, and run 3 has published it since",
            "a backup made since run 3",
        ),
    ),
    "an old copy of a log": Case(
        lambda p: old_copy(p, "logs/orders"),
        *("published", "logs/orders", "stands as run 1 left it, and run 2 has published it since", "backup"),
    ),
    "hole in the ledger": Case(
        lambda p: delete(p, "logs/menu", within(p, "logs/menu")),
        *("offsets", "logs/menu", "1 hole: offsets 1 to 1 have no fate", RESTORE),
    ),
    "the end of what a run brought": Case(
        lambda p: delete(p, "logs/orders", last(p, "logs/orders")),
        *("offsets", "logs/orders", "run 2 planned offsets", RESTORE),
    ),
    "an offset twice": Case(
        lambda p: copied(p, "logs/menu", pc.field("offset") == 1),
        *("offsets", "logs/menu", "1 offset twice in the log", RESTORE),
    ),
    "no fate": Case(
        lambda p: update(p, "logs/menu", within(p, "logs/menu"), fate="'lost'"),
        *("offsets", "logs/menu", "1 offset with an unknown fate: lost", RESTORE),
    ),
    "stream time running back": Case(
        lambda p: update(
            p, "logs/menu", "fate = 'accepted' AND run = 1 AND \"offset\" > 1", streamTime=f"streamTime - {SECOND}"
        ),
        *("stream time", "logs/menu", "a stream time that the accepted records before do not give", RESTORE),
    ),
    "stream time of a run's first record": Case(
        lambda p: update(p, "logs/menu", "run = 2", streamTime=f"streamTime + {SECOND}"),
        *("stream time", "logs/menu", "a stream time that the accepted records before do not give", RESTORE),
    ),
    "refused and not in quarantine": Case(
        lambda p: delete(p, "quarantine", "fate = 'null_key'"),
        *("quarantine", "quarantine", "1 record refused and not in the quarantine", "quarantine verified --rebuild"),
    ),
    "other bytes in quarantine": Case(
        lambda p: update(p, "quarantine", "fate = 'null_key'", value="arrow_cast('x', 'Binary')"),
        *("quarantine", "quarantine", "1 record refused and not in the quarantine", "quarantine verified --rebuild"),
    ),
    "in quarantine, not refused": Case(
        lambda p: copied(p, "quarantine", pc.field("fate") == "null_key", offset=99),
        *("quarantine", "quarantine", "1 record in the quarantine and not refused", "quarantine verified --rebuild"),
    ),
    "a journal entry lost": Case(
        lambda p: delete(p, "runs", "run = 2"),
        *("journal", "runs", "tables have runs that the journal lacks: 2 (", "hindcast ledger verified --rebuild"),
    ),
    "the last run lost": Case(
        lambda p: delete(p, "runs", "run = 3"),
        *("journal", "runs", "tables have runs that the journal lacks: 3 (", "hindcast ledger verified --rebuild"),
    ),
    "an end lost": Case(
        lambda p: delete(p, "runs", "run = 2 AND entry = 'completed'"),
        *("journal", "runs", "has not ended, and run 3 after it was completed", "hindcast abandon verified 2"),
    ),
}
ONLY_TOLD = "hindcast run verified --only told"
OF_ALL = {
    "a window twice": Case(
        lambda p: copied(p, "sold", pc.field("systemTo").is_null(), n=99),
        *("tiling", "sold", "1 row twice at the same system time", RESTORE),
    ),
    "a hole in what was emitted": Case(
        lambda p: delete(p, "emitted/told", '_epoch = 1 AND "_offset" = 0'),
        *("emitted", "emitted/told", "where the output is not continuous: offset 0 is missing", RESTORE),
    ),
    "emptied by a forgetting that was killed and repeated": Case(
        lambda p: emptied(p, "told"),
        *("emitted", "emitted/told", "forget run 3, which was killed and repeated, removed the records", ONLY_TOLD),
    ),
    "an old copy of what was emitted": Case(
        lambda p: old_copy(p, "emitted/told"),
        *("published", "emitted/told", "stands as run 2 left it, and run 3 has processed records since", "backup"),
    ),
    "kept nothing": Case(
        lambda p: shutil.rmtree(Path(p.warehouse, p.name, "kept/told/2")),
        *("emitted", "kept/told/2", "the state of the view is missing", ONLY_TOLD),
    ),
}
"""Of a window, and of what a kafka view emits and keeps."""


EACH = pytest.mark.parametrize("healthy", ["few", pytest.param("all", marks=pytest.mark.long)], indirect=True)


@EACH
def test_nothing_is_wrong_with_a_healthy_pipeline_after_any_of_its_runs(healthy: Healthy) -> None:
    assert healthy.found == [[], [], []]
    rows = {name: healthy.p.raw(name) for name in ("quarantine", "failing", "fates/menu", *healthy.p.contract.views)}
    assert all(rows.values()), "there is something of every kind"
    assert {row["fate"] for row in rows["quarantine"]} == {"malformed", "null_key", "expired", "accepted"}


@pytest.mark.parametrize(
    ("healthy", "case"),
    [
        *(pytest.param("few", case, id=name) for name, case in CASES.items()),
        *(pytest.param("all", case, id=name, marks=pytest.mark.long) for name, case in OF_ALL.items()),
    ],
    indirect=["healthy"],
    scope="module",  # else each case would make a pipeline of its own
)
def test_a_corruption_is_told_by_one_finding_and_what_is_to_be_done_mends_it(copy: Pipeline, case: Case) -> None:
    """Done are the mends that need no run; those that do: test_runs_mend_what_they_are_to_mend."""
    case.corrupt(copy)
    [finding] = verified(copy).findings
    assert (finding.check, finding.table) == (case.check, case.table)
    assert case.found in finding.found
    assert case.fix in finding.fix
    if case.fix == RESTORE:
        python, _, command = shlex.split(finding.fix)
        assert python == "python"
        exec(command, {})  # noqa: S102  # as a person does
    elif "rebuild" in case.fix or "abandon" in case.fix:
        with copy.here():
            assert main.main(finding.fix.partition(" (")[0].split()[1:]) == 0
    else:
        return
    assert checks(verified(copy)) == []


def derived(p: Pipeline, *, whole: bool = True) -> VerifyReport:
    spark = p.spark
    assert spark is not None
    with p.here():
        return verify_tables(p.contract, spark=lambda: spark, whole=whole)


@pytest.mark.long
@pytest.mark.ci
@pytest.mark.slow
@EACH
def test_tables_are_what_the_log_makes_of_them(healthy: Healthy, monkeypatch: pytest.MonkeyPatch) -> None:
    told = derived(healthy.p)
    assert (told.findings, told.not_checked) == ([], [])
    monkeypatch.setattr(definition, "SAMPLE_SIZE", 2)
    assert derived(healthy.p, whole=False).findings == []


@pytest.mark.long
@pytest.mark.parametrize("healthy", ["all"], indirect=True)
def test_runs_mend_what_they_are_to_mend(copy: Pipeline) -> None:
    folder = Path(copy.warehouse, copy.name)
    update(copy, "menu", OPEN_SQL, price="7")
    file(copy, "bills").unlink()
    shutil.rmtree(folder / "kept/told/2")
    told = {it.table: it for it in derived(copy).findings}
    assert {(it.check, it.table) for it in told.values()} == {
        *(("definition", "menu"), ("files", "bills"), ("emitted", "kept/told/2"))
    }
    assert '"price": 7' in told["menu"].found
    assert '"price": 10' in told["menu"].found
    assert told["menu"].fix.endswith("hindcast run verified --only menu")
    assert f"mv {folder}/bills {folder}/bills.lost && hindcast run verified --only bills" in told["bills"].fix
    (folder / "bills").rename(copy.folder / "bills.lost")
    copy.run(only="menu")
    assert checks(derived(copy)) == ["emitted: kept/told/2"]
    copy.run(only="told")
    assert derived(copy).findings == []

    update(copy, "orders", "customer = 'bob'", quantity="3")
    told = {it.table: it for it in derived(copy).findings}
    assert [(it.check, it.table, it.key) for it in told.values()] == [("definition", "orders", '{"customer": "bob"}')]
    copy.run(only="orders")
    assert derived(copy).findings == []
    assert [row[2] for row in copy.believed("orders") if row[0] == "bob"] == [2]

    before = copy.believed("told")
    for empties in (False, True):
        if empties:
            emptied(copy, "told")
        else:
            file(copy, "emitted/told").unlink()
        [broken] = derived(copy).findings
        *moves, run = broken.fix.rpartition("without one: ")[2].partition(" (")[0].split(" && ")
        for name, move in zip(("emitted/told", "kept/told", "told"), moves, strict=True):
            assert move == f"mv {folder}/{name} {folder}/{name}.lost"
            (folder / name).rename(copy.folder / f"{name.replace('/', '.')} {len(copy.states())}")
        assert run == "hindcast run verified --only told"
        copy.run(only="told")
        assert derived(copy).findings == []
        assert copy.believed("told") == before


def test_what_a_changed_contract_makes_of_tables_is_not_asked(copy: Pipeline) -> None:
    copy.write(copy.path.read_text().replace("60 seconds", "10 seconds"))
    [why] = derived(copy).not_checked
    assert why.endswith(
        "the contract, or a variable of it (--var), was changed since run 3: the next run derives the tables again"
    )


def test_findings_are_told_with_place_and_mend(copy: Pipeline, capsys: pytest.CaptureFixture[str]) -> None:
    update(copy, "menu", OPEN_SQL, _belief="'past'")
    with copy.here():
        assert main.main(["verify", "verified", "--quick", "--json"]) == 1
        told = json.loads(capsys.readouterr().out)
        assert main.main(["verify", "verified", "--quick"]) == 1
        shown = capsys.readouterr().out
        assert main.main(["verify", "verified", "--quick", "--table", "orders"]) == 0
        assert "nothing wrong" in capsys.readouterr().out
        assert main.main(["verify", "verified", "--quick", "--table", "order"]) == 2
        assert "did you mean 'orders'?" in capsys.readouterr().err
    [finding] = told["findings"]
    assert (finding["check"], finding["table"], finding["key"]) == ("belief", "menu", '{"item":"curry"}')
    assert 'belief: menu, key {"item":"curry"}' in shown
    assert told["notChecked"] == ["whether tables match the log: this check needs Spark"]


def test_where_there_is_no_table_nothing_can_be_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Pipeline(None, "", tmp_path, CONTRACT).here():
        assert main.main(["verify", "verified", "--quick"]) == 2
    assert "warehouse/verified: there are no tables to verify" in capsys.readouterr().err


def test_without_a_session_the_rest_is_told(copy: Pipeline) -> None:
    def no_jars() -> SparkSession:
        raise PlatformError("Spark's extra jars are missing", fix="run `make setup`")

    file(copy, "bills").unlink()
    told = verify_tables(copy.contract, spark=no_jars)
    assert checks(told) == ["files: bills"]
    assert "Spark's extra jars are missing" in told.not_checked[0]


@pytest.mark.long
def test_what_cannot_be_derived_is_told(copy: Pipeline) -> None:
    update(copy, "logs/menu", "fate = 'accepted' AND run = 1", value="arrow_cast('{', 'Binary')")
    told = {it.table: it for it in derived(copy).findings}
    assert told["menu"].check == "definition"
    assert "cannot be derived from the log" in told["menu"].found


def test_a_broken_journal_ends_the_search(copy: Pipeline) -> None:
    file(copy, "runs").unlink()
    told = verified(copy)
    assert checks(told) == ["files: runs"]
    assert "hindcast ledger verified --rebuild" in told.findings[0].fix
    assert told.not_checked == ["everything else, until the journal of runs can be read"]


def test_what_a_run_does_meanwhile_is_not_asked_for(copy: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run 3 is completed after tables were opened that it had still to publish."""
    now = journal.read_runs(copy.warehouse, copy.name)
    before = [*now[:2], Run(now[2].plan)]
    answers = iter([before, now, now, now])
    old_copy(copy, "menu")
    monkeypatch.setattr(journal, "read_runs", lambda *_: next(answers))
    assert checks(verified(copy)) == []


def test_the_key_of_a_sensitive_table_is_not_told(copy: Pipeline) -> None:
    copy.write(copy.path.read_text().replace("    read: table\n", "    read: table\n    sensitive: true\n"))
    update(copy, "menu", OPEN_SQL, _belief="'past'")
    [finding] = verified(copy).findings
    assert finding.key == "***"
    assert "curry" not in format_report(verified(copy))


@pytest.mark.parametrize(
    ("rows", "overlapping"),
    [
        ([(0, 4, 1, 3), (4, 9, 1, 3), (0, 9, 3, FOREVER)], None),
        ([(0, 4, 1, 3), (2, 9, 2, FOREVER)], (0, 1)),
        ([(0, 4, 1, 3), (2, 9, 3, FOREVER)], None),
        ([(0, FOREVER, 1, FOREVER), (5, 6, 2, 4)], (0, 1)),
        ([(5, 6, 1, FOREVER), (0, FOREVER, 2, 4)], (0, 1)),
        ([(0, 1, 1, 9), (3, 4, 1, 9), (6, 7, 1, 9), (1, 3, 2, 9), (4, 6, 2, 9), (7, 8, 2, 9)], None),
        ([(0, 1, 1, 9), (3, 4, 1, 9), (6, 7, 1, 9), (1, 5, 2, 9)], (1, 3)),
        ([(0, 5, 1, 9), (0, 5, 1, 9)], (0, 1)),
    ],
)
def test_rectangles_that_overlap(rows: list[tuple[int, ...]], overlapping: tuple[int, int] | None) -> None:
    plane = [Rectangle(*row) for row in rows]
    assert find_overlap(plane) == (overlapping and tuple(plane[n] for n in overlapping))
