"""Tables in an object store that speaks S3: whole runs, and writers that commit at the same time."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from clusters import object_store, run
from hindcast.bitemporal.predicates import Question
from hindcast.plan import journal
from hindcast.query import read
from pipelines import CORRECTION, SEED, Pipeline, pipeline, tell

pytestmark = pytest.mark.cluster

ROUNDS = 12

WRITER = """
import sys
from hindcast.store.commit_once import commit_repeatable
from hindcast.common.session import open_session
spark = open_session("writer", {"spark.master": "local[1]", "spark.driver.memory": "1g"}, small=True)
print("ready", flush=True)
sys.stdin.readline()
for number in range(int(sys.argv[2])):
    rows = spark.range(number, number + 1).selectExpr("id", "'spark' AS by")
    commit_repeatable(lambda: rows.write.format("delta").mode("append").save(sys.argv[1]))
"""


@pytest.fixture(scope="module", autouse=True)
def _store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The store has a bucket, and the environment says where it is."""
    folder = tmp_path_factory.mktemp("store")
    with object_store(folder, "warehouse") as variables, pytest.MonkeyPatch.context() as patch:
        for name, value in {**variables, "HINDCAST_WAREHOUSE": "s3a://warehouse/tables"}.items():
            patch.setenv(name, value)
        yield


class Stored(Pipeline):
    """A pipeline whose warehouse is in the store."""

    @property
    def warehouse(self) -> str:
        return "s3a://warehouse/tables"


@pytest.mark.long
def test_of_commits_at_the_same_time_none_is_lost(tmp_path: Path) -> None:
    """Spark's writers and delta-rs, each in a process of its own, append to one table as fast as they can."""
    table = "s3a://warehouse/race"
    write_deltalake(table, pa.table({"id": pa.array([], pa.int64()), "by": pa.array([], pa.string())}))
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "HINDCAST_VAR": str(tmp_path)}
    with (tmp_path / "writers.log").open("wb") as log:
        writers = [
            subprocess.Popen(
                [sys.executable, "-c", WRITER, table, str(ROUNDS)],
                env=env,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
            for _ in range(2)
        ]
    try:
        for writer in writers:
            assert writer.stdout
            assert writer.stdout.readline() == "ready\n"
        for writer in writers:
            assert writer.stdin
            writer.stdin.write("go\n")
            writer.stdin.flush()
        for number in range(ROUNDS):
            write_deltalake(table, pa.table({"id": [number], "by": ["delta-rs"]}), mode="append")
        ended = [writer.wait(120) for writer in writers]
    finally:
        for writer in writers:
            writer.kill()
            writer.communicate()
    assert ended == [0, 0], (tmp_path / "writers.log").read_text(encoding="utf-8")[-3000:]
    rows = DeltaTable(table).to_pyarrow_table()
    found = sorted(zip(rows["by"].to_pylist(), rows["id"].to_pylist(), strict=True))
    assert found == sorted([(by, n) for by in ("delta-rs", "spark", "spark") for n in range(ROUNDS)])
    assert DeltaTable(table).version() == 3 * ROUNDS


@pytest.mark.long
def test_whole_runs_and_questions(broker: str, tmp_path: Path) -> None:
    with pipeline(None, broker, tmp_path) as plain:
        p = Stored(None, broker, tmp_path, plain.path.read_text(encoding="utf-8"))
        with p.here():
            for number, records in enumerate((SEED, CORRECTION), 1):
                tell(plain, records)
                assert run(p).wait(300) == 0, (p.folder / "run.log").read_text(encoding="utf-8")
                assert p.states()[-1] == (number, "completed")
            assert [row[2] for row in p.believed("bills")] == [8.0, 20.0, 27.0]
            moment = journal.read_runs(p.warehouse, p.name)[0].known_at
            rows = read.query(p.warehouse, p.contract, "bills", Question(known_at=moment)).to_pylist()
            assert [row["amount"] for row in rows if row["customer"] == "candace"] == [24]
    assert not list(tmp_path.rglob("_delta_log"))
