"""What is searched for, what may stay of texts and of Delta's own log; without Spark."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError

from hindcast.ops.erase import proof, purge, readers
from hindcast.ops.erase.texts import ForgottenTexts, json_leaves, json_strings, spellings
from hindcast.plan.marks import find_bound_contract
from hindcast.store.folder import WarehouseFolder
from warehouses import shop

ANN = ForgottenTexts(
    frozenset({"ann"}), frozenset({"ann", "Ann Marker", "30"}), frozenset({"people", "met"}), frozenset({"met"})
)


@pytest.mark.parametrize(
    ("text", "every", "without_numbers"),
    [
        ('{"name": "Ann", "at": {"city": ["Rome", null]}, "n": 7, "ok": true}', ["Ann", "Rome", "7"], ["Ann", "Rome"]),
        ("no JSON", ["no JSON"], ["no JSON"]),
        ('{"a": "b", "c": "d', ['{"a": "b", "c": "d'], ['{"a": "b", "c": "d', "b"]),
        ("7", ["7"], []),
        ("null", [], []),
    ],
)
def test_the_texts_of_a_record(text: str, every: list[str], without_numbers: list[str]) -> None:
    assert list(json_leaves(text)) == every
    assert list(json_strings(text)) == without_numbers


def test_what_is_everywhere_by_chance_is_not_sought() -> None:
    said = {
        "Ann",
        "Anna",
        "1234567",
        "12345678",
        "+39 06 1234",
        "2026-01-05",
        "2026-01-05T09:00:00.000Z",
        "2026-01-05 Ann",
    }
    assert ForgottenTexts(frozenset(), frozenset(said), frozenset()).search_terms == {
        "Anna",
        "12345678",
        "+39 06 1234",
        "2026-01-05 Ann",
    }


def test_a_text_is_sought_as_files_may_write_it() -> None:
    assert spellings("<é>") == {"<é>", "<\\u00e9>", "&lt;é&gt;"}
    assert ANN.search_terms == {"Ann Marker"}, "what is shorter is in every file by chance"


@pytest.mark.parametrize(
    ("told", "kept"),
    [
        ({"found": "run 3 failed on key ann"}, {"found": "forgotten"}),
        ({"again": """hindcast release town.people --key '{"id":"ann"}'"""}, {"again": "forgotten"}),
        ({"found": "run 3 failed on key annabel"}, {"found": "run 3 failed on key annabel"}),
        ({"topics": {"ann": {"topic": "ann"}}}, {"topics": {"ann": {"topic": "ann"}}}),
        (
            {"releases": {"people": {"keys": ['{"id":"ann"}', '{"id":"bob"}'], "by": "eve"}}},
            {"releases": {"people": {"keys": ['{"id":"bob"}'], "by": "eve"}}},
        ),
        (
            {"tables": {"met": {"gates": [{"detail": "2 of 3 rows fail, for example 7, 8"}]}}},
            {"tables": {"met": {"gates": [{"detail": "2 of 3 rows fail"}]}}},
        ),
        (
            {"tables": {"visits": {"gates": [{"detail": "2 of 3 rows fail, for example 7, 8"}]}}},
            {"tables": {"visits": {"gates": [{"detail": "2 of 3 rows fail, for example 7, 8"}]}}},
        ),
        (
            {"tables": {"met": {"gates": [{"detail": "could not be evaluated: 'ANN' is no int"}]}}},
            {"tables": {"met": {"gates": [{"detail": "could not be evaluated"}]}}},
        ),
        (
            {"found": "town.met, run 3: 1 of 2 gates stopped it; nothing of it was published. x: 1 rows fail, ANN"},
            {"found": "town.met, run 3: 1 of 2 gates stopped it; nothing of it was published."},
        ),
        ({"found": "town.met, run 3: cannot cast 'ANN'"}, {"found": "forgotten"}),
        ({"found": "town.metro, run 3: cannot cast 'X'"}, {"found": "town.metro, run 3: cannot cast 'X'"}),
        (
            {"releases": {"met": {"keys": ['{"id":"ANN"}'], "by": "eve"}}},
            {"releases": {"met": {"keys": [], "by": "eve"}}},
        ),
        (
            {"tables": {"people": {"held": {"keys": 2, "overdue": {"keys": 2, "key": '{"id":"ann"}'}}}}},
            {"tables": {"people": {"held": {"keys": 2, "overdue": {"keys": 2, "key": "forgotten"}}}}},
        ),
        (
            {"tables": {"people": {"held": {"keys": 2, "overdue": {"keys": 2, "key": '{"id":"annabel"}'}}}}},
            {"tables": {"people": {"held": {"keys": 2, "overdue": {"keys": 2, "key": '{"id":"annabel"}'}}}}},
        ),
        (
            {"tables": {"met": {"held": {"keys": 1, "overdue": {"keys": 1, "key": '{"id":"ANN"}'}}}}},
            {"tables": {"met": {"held": {"keys": 1, "overdue": {"keys": 1, "key": "forgotten"}}}}},
        ),
        ({"tables": {"key": {"opened": 1, "gates": []}}}, {"tables": {"key": {"opened": 1, "gates": []}}}),
        (
            {"still": {"records": 1, "first": [{"offset": 4, "reason": "value: 'Ann Marker' is no int"}]}},
            {"still": {"records": 1, "first": [{"offset": 4, "reason": "forgotten"}]}},
        ),
    ],
)
def test_of_plans_and_reports_only_free_texts_go(told: dict[str, object], kept: dict[str, object]) -> None:
    assert ANN.scrub_json(told) == kept
    assert ANN.scrub_text(json.dumps(told)) in (json.dumps(kept), json.dumps(told))


def test_a_commit_keeps_what_it_is_and_loses_what_files_said_that_are_gone() -> None:
    lines = [
        {
            "commitInfo": {
                "operation": "MERGE",
                "operationParameters": {"predicate": "id = 'ann'"},
                "userMetadata": "{}",
            }
        },
        {"txn": {"appId": "hindcast/town/people", "version": 3}},
        {"add": {"path": "a.parquet", "stats": '{"numRecords":2,"minValues":{"id":"ann"}}', "dataChange": True}},
        {"add": {"path": "b%20b.parquet", "stats": '{"numRecords":1,"minValues":{"id":"bob\u2028"}}'}},
        {"remove": {"path": "b%20b.parquet", "stats": '{"numRecords":2,"minValues":{"id":"ann"}}'}},
        {"remove": {"path": "c.parquet", "dataChange": True}},
    ]
    commit = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    scrubbed = purge.scrub_commit(commit, frozenset({"b b.parquet"}), ANN.scrub_text)
    told = [json.loads(line) for line in scrubbed.removesuffix("\n").split("\n")]
    assert told[0]["commitInfo"]["operationParameters"] == {"predicate": "forgotten"}
    assert told[0]["commitInfo"]["userMetadata"] == "{}"
    assert told[1] == lines[1]
    assert json.loads(told[2]["add"]["stats"]) == {"numRecords": 2}
    assert told[2]["add"]["dataChange"]
    assert told[3] == lines[3]
    assert json.loads(told[4]["remove"]["stats"]) == {"numRecords": 2}
    assert told[5] == lines[5]
    again = purge.scrub_commit(
        "".join(json.dumps(line) + "\n" for line in told), frozenset({"b b.parquet"}), ANN.scrub_text
    )
    assert [json.loads(line) for line in again.splitlines()] == told


@pytest.mark.parametrize(
    "hidden",
    [
        {"a": pa.array(["x", "a long text: Ann Marker"])},
        {"a": pa.array([b"x", b'{"name": "Ann Marker"}'])},
        {"a": pa.array([[{"name": "Ann Marker"}], None])},
        {"a": pa.array([{"to": ["Ann Marker"]}, None])},
        {"a": pa.DictionaryArray.from_arrays(pa.array([0, 0]), pa.array(["x", "Ann Marker"]))},
    ],
)
def test_a_text_is_found_wherever_a_file_has_it(tmp_path: Path, hidden: dict[str, pa.Array]) -> None:
    table = tmp_path / "warehouse" / "people"
    table.mkdir(parents=True)
    pq.write_table(pa.table(hidden), table / "rows.parquet", compression="zstd", write_statistics=False)
    found = proof.search_files(WarehouseFolder(str(table.parent)), set(), tmp_path / "reports", ANN.search_terms)
    told = proof.weigh_evidence(found, set(), ANN.search_terms, "", 0, ["people"])
    assert [it.files for it in told.left] == [("people/rows.parquet",)]
    assert not told.is_proven


def test_any_number_of_texts_can_be_searched_for_and_long_ones(tmp_path: Path) -> None:
    """RE2 takes no pattern of as much."""
    texts = [*(str(uuid.UUID(int=n * 2**100)) for n in range(50_000)), *(f"{n}{'long' * 500_000}" for n in range(2))]
    (tmp_path / "people").mkdir()
    pq.write_table(pa.table({"a": [f"x {texts[-1]}", f"x {texts[7]}"]}), tmp_path / "people" / "rows.parquet")
    found = proof.search_files(WarehouseFolder(str(tmp_path)), set(), tmp_path / "reports", texts)
    assert found.places.keys() == {texts[-1], texts[7]}


def test_a_notice_is_not_searched(tmp_path: Path) -> None:
    """It comes and goes, and a forgotten text may stand in it by chance."""
    folder = WarehouseFolder(str(tmp_path))
    for name in ("_notices/run-3.json", "said.json"):
        folder.write(name, b"Ann Marker")
    found = proof.search_files(folder, set(), tmp_path / "reports", ANN.search_terms)
    assert (found.files, {**found.places}) == (1, {"Ann Marker": {"said.json"}})


def test_what_others_say_too_is_shared_and_nothing_else_is(tmp_path: Path) -> None:
    for name, texts in (("logs/people", ["Ann Marker of another"]), ("people", ["Ann Marker"])):
        write_deltalake(str(tmp_path / "town" / name), pa.table({"said": texts}))
    folder, sought = WarehouseFolder(str(tmp_path / "town")), {"Ann Marker", "only hers"}
    live = {
        f"{name}/{it}"
        for name in folder.tables
        for it in purge.list_live_files(DeltaTable(str(tmp_path / "town" / name)))
    }
    (tmp_path / "town" / "people" / "_old" / "deletion_vector.bin").parent.mkdir()
    (tmp_path / "town" / "people" / "_old" / "deletion_vector.bin").write_bytes(b"")
    found = proof.search_files(folder, live, tmp_path / "reports", sought)
    told = proof.weigh_evidence(found, live, sought, "", 0, ["people"])
    assert told.orphan_files == ("people/_old/deletion_vector.bin",)
    assert not told.is_proven
    (tmp_path / "town" / "people" / "_old" / "deletion_vector.bin").unlink()
    found = proof.search_files(folder, live, tmp_path / "reports", sought)
    told = proof.weigh_evidence(found, live, sought, "", 0, ["people"])
    assert (told.is_proven, told.shared, told.left, told.orphan_files) == (True, 1, (), ())
    assert not proof.weigh_evidence(found, live, sought, "", 1, ["people"]).is_proven, "a row is left"
    reports = tmp_path / "reports"
    reports.mkdir()
    (reports / "run-1.json").write_text('{"found": "only hers"}')
    found = proof.search_files(folder, live, reports, sought)
    assert [it.files for it in proof.weigh_evidence(found, live, sought, "", 0, ["people"]).left] == [
        ("reports/run-1.json",)
    ]
    assert proof.weigh_evidence(found, live, sought, "a gate looks for: only hers", 0, ["people"]).is_proven


def test_what_others_say_in_another_spelling_is_shared(tmp_path: Path) -> None:
    """A log has keys as JSON, where a quote is escaped; a table has them as they are."""
    for name, text in (("logs/people", '{"name": "Ann \\"the\\" Marker"}'), ("people", 'Ann "the" Marker')):
        write_deltalake(str(tmp_path / "town" / name), pa.table({"said": [text]}))
    folder = WarehouseFolder(str(tmp_path / "town"))
    terms = ForgottenTexts(frozenset(), frozenset({'Ann "the" Marker'}), frozenset()).search_terms
    live = {
        f"{name}/{it}"
        for name in folder.tables
        for it in purge.list_live_files(DeltaTable(str(tmp_path / "town" / name)))
    }
    found = proof.search_files(folder, live, tmp_path / "reports", terms)
    evidence = proof.weigh_evidence(found, live, terms, "", 0, ["people"])
    assert (evidence.is_proven, evidence.left) == (True, ())
    assert proof.weigh_evidence(found, {it for it in live if "logs" not in it}, terms, "", 0, ["people"]).left


def test_what_the_log_of_a_topic_says_that_has_left_the_contract_is_not_shared(tmp_path: Path) -> None:
    """It may be the same topic under its former name, and the record that is to be forgotten."""
    write_deltalake(str(tmp_path / "town" / "logs" / "folk"), pa.table({"said": ["Ann Marker"]}))
    folder = WarehouseFolder(str(tmp_path / "town"))
    live = {f"logs/folk/{it}" for it in purge.list_live_files(DeltaTable(str(tmp_path / "town" / "logs" / "folk")))}
    found = proof.search_files(folder, live, tmp_path / "reports", ["Ann Marker"])
    assert not proof.weigh_evidence(found, live, ["Ann Marker"], "", 0, ["people"]).is_proven
    assert proof.weigh_evidence(found, live, ["Ann Marker"], "", 0, ["people", "folk"]).is_proven


def test_what_a_killed_writer_left_is_removed(tmp_path: Path) -> None:
    """delta-rs lists no such file, so neither a purge nor a proof would see it."""
    table = tmp_path / "bills"
    write_deltalake(str(table), pa.table({"said": ["x"]}))
    left = [
        table / "part-1.parquet#1",
        table / "_delta_log" / "_commit_1.json.tmp#12",
        tmp_path / "new" / "p.parquet#1",
    ]
    others = [table / "item=a#b" / "part-1.parquet", tmp_path / "_notices" / "1.json#1"]
    for path in (*left, *others):
        path.parent.mkdir(exist_ok=True)
        path.write_text("Ann Marker")
    WarehouseFolder(str(tmp_path)).remove_unfinished_files()
    assert [path.exists() for path in (*left, *others)] == [False, False, False, True, True]


@pytest.mark.parametrize("widened", [False, True])
def test_a_purge_that_is_killed_leaves_a_table_that_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, widened: bool
) -> None:
    """Before and after each file that it writes or removes. Of a widened table delta-rs writes no checkpoint."""
    path, folder, seen = str(tmp_path / "people"), WarehouseFolder(str(tmp_path)), set[tuple[str, str]]()
    for n in range(3):
        note = CommitProperties(custom_metadata={"userMetadata": "Ann Marker"})
        name = f"{tmp_path.name}.people"
        write_deltalake(path, pa.table({"n": [n]}), mode="append", name=name, commit_properties=note)
        DeltaTable(path).create_checkpoint()
    DeltaTable(path).delete("n = 1")

    def die_once(owner: Any, name: str) -> None:
        real = getattr(owner, name)

        def die(place: tuple[str, str]) -> None:
            if place not in seen:
                seen.add(place)
                raise InterruptedError

        def dying(*args: Any) -> None:
            die((f"before {name}", args[1]))
            real(*args)
            die((f"after {name}", args[1]))

        monkeypatch.setattr(owner, name, dying)

    for name in ("remove", "write"):
        die_once(WarehouseFolder, name)
    listed = WarehouseFolder.list_files  # as a disk or an object store may list them
    monkeypatch.setattr(WarehouseFolder, "list_files", lambda *args: sorted(listed(*args)))
    if widened:
        monkeypatch.setattr(DeltaTable, "create_checkpoint", lambda _: (_ for _ in ()).throw(DeltaError("widened")))
    for _ in range(60):
        try:
            purge.purge_table(None, folder, "people", path, lambda text: text.replace("Ann Marker", "-"))  # type: ignore[arg-type]
            break
        except InterruptedError:
            assert sorted(DeltaTable(path).to_pyarrow_table().column("n").to_pylist()) == [0, 2]
    assert len(seen) > 6
    left = {file.name for file in (tmp_path / "people" / "_delta_log").iterdir()}
    commits = {f"{version:020}.json" for version in range(4)}
    assert left == (commits if widened else {*commits, f"{3:020}.checkpoint.parquet", "_last_checkpoint"})
    assert not any(b"Ann Marker" in file.read_bytes() for file in (tmp_path / "people").rglob("*.json"))


def test_a_table_within_anothers_folder_is_not_its_own(tmp_path: Path) -> None:
    for name in ("logs", "logs/people"):
        write_deltalake(str(tmp_path / name), pa.table({"said": ["x"]}))
    folder = WarehouseFolder(str(tmp_path))
    assert folder.tables == ["logs", "logs/people"]
    assert [path.rpartition("/")[0] for path in purge.list_data_files(folder, "logs")] == ["logs"]
    assert [path.rpartition("/")[0] for path in purge.list_data_files(folder, "logs/people")] == ["logs/people"]


READER = """
pipeline: reader
start: 2026-01-01
inputs:
  known: {table: shop.bills, read: stream, key: {customer: string}, value: {item: string}}
  prices: {table: shop.prices, read: table, key: {item: string}, value: {note: string}}
topics: {orders: {topic: reader.orders, read: stream, key: {customer: string}, value: {item: string}}}
views:
  again: {stream: known, select: {item: item}}
  most: {stream: again, aggregate: {n: count(*)}}
  noted: {stream: orders, join: {table: prices, on: item}, select: {note: note}}
"""


def test_views_of_other_pipelines_are_named(tmp_path: Path) -> None:
    with shop(tmp_path, READER) as now:
        contract = find_bound_contract(now, "shop")
        assert readers.find_readers(contract, ["orders", "bills"]).views == ("reader.again", "reader.most")
        views = ("reader.again", "reader.most", "reader.noted")
        assert readers.find_readers(contract, ["prices", "bills"]) == readers.Readers(views)
        assert readers.find_readers(contract, ["visits"]) == readers.Readers(())
        text = READER.replace("pipeline: reader", "pipeline: third").replace("shop.bills", "reader.again")
        (now.schemas / "third.yaml").write_text(text.replace("reader.orders", "third.orders"))
        assert readers.find_readers(contract, ["bills"]).views == (*views[:2], "third.again", "third.most")
    assert "reader.again, reader.most" in readers.describe_readers(readers.Readers(("reader.again", "reader.most")))[0]


def test_an_invalid_contract_of_another_pipeline_is_named_as_a_possible_reader(tmp_path: Path) -> None:
    with shop(tmp_path, READER) as now:
        contract = find_bound_contract(now, "shop")
        (now.schemas / "broken.yaml").write_text("pipeline: [")
        (now.schemas / "other.yaml").write_text(READER.replace("reader", "other").replace("views:", "viewz:"))
        found = readers.find_readers(contract, ["orders", "bills"])
    assert found == readers.Readers(("reader.again", "reader.most"), ("broken.yaml", "other.yaml"))
    assert readers.describe_readers(found)[:2] == [
        "Whether broken.yaml reads these tables is not known: it is invalid.",
        "Whether other.yaml reads these tables is not known: it is invalid.",
    ]
