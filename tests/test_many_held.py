"""100,000 records that are refused, and as many keys that are held back: what lists and decides stays quick, and lists
stay short. Seconds are of computing, so that a busy machine does not count.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from fastapi.testclient import TestClient

from hindcast.airflow import approval_tasks
from hindcast.airflow.pages.access import PageAccess
from hindcast.airflow.pages.routes import build_app
from hindcast.cli import main
from hindcast.common.settings import Settings
from hindcast.ingest import quarantine
from hindcast.ops.verify import quarantine_checks
from hindcast.plan.marks import find_bound_contract
from hindcast.quality import approval, failing_rows, held_changes
from hindcast.store import table_creation
from warehouses import RUNS, shop

MANY = 100_000


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """The warehouse `shop`, of whose prices so many keys are held, and so many records refused."""
    with shop(tmp_path_factory.mktemp("shop")) as found:
        numbers = range(MANY)
        keys, rows = ([text % n for n in numbers] for text in ('{"item":"i%d"}', '{"item":"i%d","price":0.00}'))
        place = {"topic": ["shop.prices"] * MANY, "partition": [0] * MANY, "offset": list(numbers)}
        held = {
            **place,
            "run": [1] * MANY,
            "at": [RUNS[0]] * MANY,
            "table": ["prices"] * MANY,
            "key": keys,
            "row": rows,
        }
        held |= {"entry": ["held"] * MANY, "change": ["open"] * MANY, "since": [0] * MANY, "digest": list(numbers)}
        failing = table_creation.ensure_table(failing_rows.failing_table(found.warehouse, "shop"), failing_rows.SCHEMA)
        write_deltalake(failing, fill(held, table_creation.arrow_schema(failing_rows.SCHEMA)), mode="append")
        refused = table_creation.ensure_table(
            quarantine.quarantine_table(found.warehouse, "shop"), quarantine_checks.SCHEMA
        )
        was = {**place, "run": held["run"], "timestamp": held["at"], "fate": ["malformed"] * MANY}
        was |= {"key": [b"i%d" % n for n in numbers], "value": [b"{"] * MANY, "reason": ["no JSON"] * MANY}
        write_deltalake(refused, fill(was, pa.schema(refused.schema().to_arrow())), mode="append")
        yield found


def fill(columns: dict[str, list[object]], schema: pa.Schema) -> pa.Table:
    """Return a table of these columns, null where nothing is told."""
    return pa.table([pa.array(columns.get(f.name, [None] * MANY), f.type) for f in schema], schema=schema)


@contextmanager
def quick(seconds: float) -> Iterator[None]:
    start = time.process_time()
    yield
    assert time.process_time() - start < seconds


@pytest.mark.usefixtures("settings")
@pytest.mark.parametrize("line", ["failing shop", "failing shop --held", "quarantine shop", "quarantine shop --all"])
def test_a_list_shows_the_first_thousand_rows_and_says_how_many_there_are(
    line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with quick(15):
        assert main.main(line.split()) == 0
    shown = capsys.readouterr()
    assert shown.out.endswith("(1,000 rows)\n")
    assert shown.err == "hindcast: 1,000 of 100,000 rows are shown; --limit 0 shows all\n"
    assert len(shown.out) < 300_000


@pytest.mark.usefixtures("settings")
def test_as_many_rows_are_shown_as_are_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    with quick(15):
        assert main.main(["failing", "shop", "--held", "--limit", "2"]) == 0
    assert capsys.readouterr().out.endswith("(2 rows)\n")
    with quick(15):
        assert main.main(["quarantine", "shop", "--format", "json", "--limit", "3"]) == 0
    assert [row["key"] for row in json.loads(capsys.readouterr().out)] == ["i0", "i1", "i2"]


@pytest.mark.long
@pytest.mark.usefixtures("settings")
def test_programs_are_given_all(capsys: pytest.CaptureFixture[str]) -> None:
    with quick(30):
        assert main.main(["quarantine", "shop", "--format", "json"]) == 0
    shown = capsys.readouterr()
    assert (len(json.loads(shown.out)), shown.err) == (MANY, "")


@pytest.mark.long
@pytest.mark.usefixtures("settings")
def test_pages_and_what_a_person_is_asked_are_short() -> None:
    web = TestClient(build_app(PageAccess(lambda: None, lambda dag_id: None, lambda: frozenset(["shop"]))))  # noqa: ARG005
    with quick(15):
        answers = [web.get(page) for page in ("/quality/shop", "/ledger/shop", "/machine/shop?table=prices")]
        asked = approval_tasks.read_held_changes("shop")
    assert {(answer.status_code, len(answer.text) < 100_000) for answer in answers} == {(200, True)}
    assert "and 99,800 more keys: hindcast failing shop --held" in asked["text"]
    assert len(json.dumps(asked)) < 80_000


@pytest.mark.long
def test_keys_are_found_counted_and_rejected(settings: Settings) -> None:
    contract = find_bound_contract(settings, "shop")
    with quick(30):
        counts = held_changes.count_held(settings.warehouse, "shop", 1, 0)
        some = held_changes.find_held_keys(settings.warehouse, "shop", "prices", [f"i{n}" for n in range(50)])
        labels = json.dumps([key.label for key in approval.read_held_keys(contract)])
        every = approval.choose_keys(contract, datetime.now(UTC), labels)
        rejected = held_changes.reject_keys(settings.warehouse, "shop", every, "ann", datetime.now(UTC))
    assert counts["prices"]["keys"] == len(every["prices"]) == len(rejected["prices"]) == MANY
    assert len(some) == 50
    assert approval.choose_keys(contract, datetime.now(UTC), labels) == {}
