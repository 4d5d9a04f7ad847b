"""docs/semantics.md cannot lie: its views, applied to its records, give its rows.

How the page is written. The first `yaml` block is the contract without views; every further one holds views. A table
belongs to the section it stands in. The paragraph above it begins with its name in backticks and ends with a colon:

- The name of a topic, and a column `at`: records in the order of their offsets, one partition. Columns left out are
  null; a record whose value columns are all null is a tombstone. `run`: the run that brought the record (default 1).
  `fate`: the fate that the record must have.
- The name of a view, or of a topic without `at`: the rows that it must hold, no more and no fewer, with all columns.
  `systemFrom` and `systemTo`: every row ever believed, and from which run to which.
- `refused`: views that `load` must refuse, and the words it must say.

Times are minutes, `4 + 1 ms` is a millisecond later. `null` is null.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

from hindcast.bitemporal import derivation, fates
from hindcast.common.errors import HindcastError
from hindcast.common.session import fit_to_rows
from hindcast.contract import Contract, list_shapes, load
from hindcast.ingest import topic_log

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PAGE = Path(__file__).resolve().parent.parent / "docs" / "semantics.md"
START = datetime(2026, 1, 1, tzinfo=UTC)
TIMES = ("validFrom", "validTo", "timestamp", "windowStart", "windowEnd")
BELIEVED = ("systemFrom", "systemTo")

Row = tuple[str | None, ...]


@dataclass
class Table:
    """A table of the page: its columns and, as they are printed, its cells."""

    columns: list[str]
    cells: list[list[str]]

    def dicts(self) -> list[dict[str, str | None]]:
        rows = ([None if cell == "null" else cell for cell in cells] for cells in self.cells)
        return [dict(zip(self.columns, row, strict=True)) for row in rows]


@dataclass
class Section:
    """A heading with what stands below it: views as YAML, records that come in, rows that come out."""

    title: str
    yaml: list[str] = field(default_factory=list)
    tables: list[tuple[str, Table]] = field(default_factory=list)

    @property
    def records(self) -> dict[str, Table]:
        return {name: table for name, table in self.tables if "at" in table.columns}

    @property
    def rows(self) -> dict[str, Table]:
        return {name: table for name, table in self.tables if "at" not in table.columns and name != "refused"}

    @property
    def runs(self) -> int:
        return max(int(row.get("run") or 1) for table in self.records.values() for row in table.dicts())


def sections(page: str) -> list[Section]:
    """The page's sections. Every table must have a name."""
    found, paragraph = [Section("")], ""
    for block in blocks(page):
        if block.startswith("#"):
            found.append(Section(block.lstrip("# ")))
        elif block.startswith("```yaml"):
            found[-1].yaml.append(block.removeprefix("```yaml").removesuffix("```"))
        elif block.startswith("|"):
            name = re.fullmatch(r"`(\w+)`.*:", paragraph, re.DOTALL)
            assert name, f"{found[-1].title}: no name above the table {block}"
            header, _, *body = ([cell.strip() for cell in line.strip("|").split("|")] for line in block.splitlines())
            found[-1].tables.append((name[1], Table(header, body)))
        paragraph = block
    return found


def blocks(page: str) -> Iterator[str]:
    """The page's paragraphs, headings, tables and fenced blocks."""
    for number, part in enumerate(re.split(r"^(```\w+\n.*?^```)$", page, flags=re.MULTILINE | re.DOTALL)):
        yield from [part] if number % 2 else filter(None, (block.strip() for block in part.split("\n\n")))


SECTIONS = sections(PAGE.read_text(encoding="utf-8"))
TOPICS = next(section.yaml.pop(0) for section in SECTIONS if section.yaml)
WITH_ROWS = [section for section in SECTIONS if section.rows]


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.title)
def test_a_section_with_views_has_their_records_and_rows(section: Section, tmp_path: Path) -> None:
    if not section.yaml:
        return
    views = contract(section, tmp_path).views
    assert views.keys() <= section.rows.keys()
    assert {name for view in views.values() for name in view.inputs} - views.keys() <= section.records.keys()


@pytest.mark.parametrize("section", WITH_ROWS, ids=lambda section: section.title)
def test_a_view_holds_the_rows_of_the_page(section: Section, computed: Mapping[tuple[str, str], list[Row]]) -> None:
    for name, table in section.rows.items():
        expected = [tuple(printed(c, v) for c, v in row.items()) for row in table.dicts()]
        assert sorted(computed.get((section.title, name), []), key=str) == sorted(expected, key=str), name


def test_a_record_has_the_fate_of_the_page(computed: Mapping[tuple[str, str], list[Row]]) -> None:
    told = {
        (section.title, f"{name}.fate"): [(str(n), row["fate"]) for n, row in enumerate(table.dicts())]
        for section in SECTIONS
        for name, table in section.records.items()
        if "fate" in table.columns
    }
    assert told
    assert {place: sorted(computed[place], key=lambda row: int(row[0] or 0)) for place in told} == told


def refusals() -> list[tuple[str, str]]:
    tables = [table for section in SECTIONS for name, table in section.tables if name == "refused"]
    return [(str(row["view"]).strip("`"), str(row["because"])) for table in tables for row in table.dicts()]


@pytest.mark.parametrize(("view", "because"), refusals())
def test_a_view_is_refused_with_the_words_of_the_page(view: str, because: str, tmp_path: Path) -> None:
    with pytest.raises(HindcastError, match=re.escape(because)):
        contract(Section("", yaml=[f"refused: {view}"]), tmp_path)


@pytest.fixture(scope="module")
def computed(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], list[Row]]:
    """What Spark makes of every section, by section and table, in one job: rows of text."""
    with fit_to_rows(spark, rows=0):
        parts = [part for section in WITH_ROWS for part in made(spark, section, tmp_path_factory.mktemp("page"))]
        rows = reduce(lambda one, other: one.unionAll(other), parts).collect()
    believed: dict[tuple[str, str], dict[Row, set[int]]] = defaultdict(lambda: defaultdict(set))
    for section, name, run, row in rows:
        assert run not in believed[section, name][tuple(row)], f"{section}: {name} holds {row} twice"
        believed[section, name][tuple(row)].add(run)
    tables = {(section.title, name): table for section in WITH_ROWS for name, table in section.rows.items()}
    return {
        place: [row + period for row, runs in held.items() for period in periods(runs, place, tables)]
        for place, held in believed.items()
    }


def made(spark: SparkSession, section: Section, folder: Path) -> Iterator[DataFrame]:
    """The rows `section, name, run, cells` of a section's tables, as known after each of its runs, and its fates."""
    it = contract(section, folder)
    logs = {name: log(spark, it, name, table) for name, table in section.records.items()}
    for name, table in section.records.items():
        if "fate" in table.columns:
            yield cells(logs[name].select("offset", "fate"), section.title, f"{name}.fate", 1)
    for run in range(1, section.runs + 1):
        inputs = {}
        for name, whole in logs.items():
            known = whole.where((F.col("run") <= run) & (F.col("fate") == "accepted"))
            topic = it.topics[name]
            inputs[name] = (
                derivation.derive_topic_versions(known, topic.ttl)
                if topic.read == "table"
                else derivation.derive_topic_events(known)
            )
        for name in it.ordered_views:
            inputs[name] = derivation.derive_view(it, name, inputs)
        for name, table in section.rows.items():
            shown = [column for column in table.columns if column not in BELIEVED]
            has = [column for column in inputs[name].columns if not column.startswith("_")]
            assert sorted(shown) == sorted(has), f"{section.title}: {name}"
            yield cells(inputs[name].select(*shown), section.title, name, run)


def log(spark: SparkSession, it: Contract, name: str, table: Table) -> DataFrame:
    """A topic's records as its log has them after replay, with the run of each."""
    topic, shape = it.topics[name], list_shapes(it)[name]
    assert {*table.columns} <= {*shape.columns, "at", "run", "fate"}, name
    rows: list[tuple[Any, ...]] = []
    for offset, row in enumerate(table.dicts()):
        at = START + timedelta(minutes=int(row["at"] or 0))
        rows.append((*(row.get(column) for column in shape.columns), at, offset, int(row.get("run") or 1)))
    columns = ", ".join(f"{column} string" for column in shape.columns)
    flat = spark.createDataFrame(rows, f"{columns}, timestamp timestamp, offset long, run int")

    def packed(part: Mapping[str, str | None]) -> Any:
        there = reduce(lambda one, other: one | other, (F.col(column).isNotNull() for column in part))
        return F.when(there, F.struct(*(F.col(column).cast(str(kind)).alias(column) for column, kind in part.items())))

    records = flat.select(
        packed(shape.key).alias("key"),
        packed(shape.value).alias("value"),
        *("timestamp", "offset", "run"),
        F.lit(0).alias("partition"),
        F.lit(None).cast("string").alias("fate"),
    )
    if topic.history_retention is None:
        return records.withColumn("fate", F.lit("accepted"))
    return fates.decide_fates(records, topic_log.retention_column(topic))


def cells(rows: DataFrame, section: str, name: str, run: int) -> DataFrame:
    shown = [
        (F.unix_millis(column) - int(START.timestamp() * 1000) if column in TIMES else F.col(column)).cast("string")
        for column in rows.columns
    ]
    return rows.select(F.lit(section), F.lit(name), F.lit(run), F.array(*shown))


def printed(column: str, cell: str | None) -> str | None:
    """A cell of the page as Spark's text of it: times in milliseconds after the start."""
    if column not in TIMES or cell is None:
        return cell
    minutes, _, more = cell.partition(" + ")
    return str(int(minutes) * 60_000 + int(more.removesuffix(" ms") or 0))


def periods(runs: set[int], place: tuple[str, str], tables: Mapping[tuple[str, str], Table]) -> Iterator[Row]:
    """The maximal stretches of runs, if the page shows them: `systemFrom` and `systemTo`, null after the last run."""
    if place not in tables or not {*BELIEVED} <= {*tables[place].columns}:
        yield ()
        return
    last = next(section.runs for section in SECTIONS if section.title == place[0])
    for start in sorted(run for run in runs if run - 1 not in runs):
        end = next(run for run in range(start, last + 2) if run not in runs)
        yield str(start), None if end > last else str(end)


def contract(section: Section, folder: Path) -> Contract:
    """The page's contract with a section's views."""
    views = "".join(section.yaml).strip()
    lines = "".join(f"  {line}\n" for line in views.splitlines())
    path = folder / "shop.yaml"
    path.write_text(TOPICS.strip() + (f"\nviews:\n{lines}" if views else "\n"), encoding="utf-8")
    return load(path)
