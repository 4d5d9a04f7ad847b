"""Names derived from a contract: DAGs, folders, functions of Spark SQL. No two of them may be the same."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from itertools import count
from pathlib import Path

from hindcast.contract.bounds import NAME
from hindcast.contract.model import Contract
from hindcast.contract.view_checks import Complaint

FOLDERS = (
    *("runs", "quarantine", "logs", "fates", "schemas", "emitted", "kept", "gates", "failing"),
    *("trimmed", "base", "rollover"),
)
"""Names in a pipeline's folder of the warehouse that are not for topics or views."""

RELEASE = "__release"
"""The suffix of the DAG that asks a person about a pipeline's held changes."""

PREVIEW = "__preview"
"""The suffix of the DAG that previews a pipeline."""

BROKEN = "__broken"
"""The suffix of the DAG that stands in for a broken contract, if its file's name is taken; a number follows if that is
taken too.
"""

MAINTENANCE = "hindcast_maintenance"
"""The id of the DAG that maintains the tables of all pipelines."""

AS_OF, BETWEEN, CLOSED_UP_TO, MOMENT = "_as_of", "_between", "__closed_up_to", "__moment"
"""The suffixes of table functions, beside the one named like the table itself (hindcast.query.spark_functions)."""


def check_names(contract: Contract) -> Iterator[Complaint]:
    """Yield a complaint about every name that is taken by something else."""
    if not can_be_pipeline(contract.pipeline):
        found = f"'{contract.pipeline}' is the name of one of Hindcast's own DAGs"
        fix = f"choose a name that does not begin with {MAINTENANCE}, and does not end in {RELEASE} or {PREVIEW}"
        yield Complaint(("pipeline",), found, fix)
    for part in ("topics", "views"):
        for name in getattr(contract, part):
            if name in FOLDERS:
                yield Complaint(
                    (part, name), f"'{name}' is the name of one of Hindcast's own tables", "choose another name"
                )
    tables = {name: (part, name) for part in ("topics", "views") for name in getattr(contract, part)}
    for name, place in tables.items():
        for ending in _SUFFIXES:
            if name.endswith(ending) and (other := name.removesuffix(ending)) in tables:
                found = f"'{name}' and '{other}' both give a function {contract.pipeline}_{name} of Spark SQL"
                yield Complaint(place, found, "choose another name")


def list_dag_ids(contract: Contract) -> list[str]:
    """Return the ids of a contract's DAGs."""
    endings = ("", PREVIEW, RELEASE) if contract.can_hold else ("", PREVIEW)
    return [f"{contract.pipeline}{ending}" for ending in endings]


def clean_dag_id(text: str) -> str:
    """Return a text with only the characters that Airflow takes in the id of a DAG, and no longer than a name."""
    return re.sub(r"[^A-Za-z0-9_.-]", "_", text)[:NAME]


def can_stand_in(dag_id: str, file: Path) -> bool:
    """Return whether a DAG may be the one that stands in for a contract file (`name_stand_ins`)."""
    stem = clean_dag_id(file.stem)
    return dag_id.startswith((stem, f"{_BROKEN_MAINTENANCE}{stem}"))


def name_stand_ins(files: Iterable[Path], taken: Collection[str]) -> dict[str, Path]:
    """Return the ids of the DAGs that stand in for contract files that do not load, each with its file.

    `taken`: the ids of other DAGs. Airflow limits the characters of an id, and its length to 250, also of the name of
    very many files.
    """
    named: dict[str, Path] = {}
    stems = {file: clean_dag_id(file.stem) for file in files}
    candidates: dict[str, Iterator[str]] = {}
    for file, stem in sorted(stems.items(), key=lambda item: item[0].stem != item[1]):  # first those of its own name
        # With any suffix the name of the maintenance could be the id of a folder's.
        name = f"{_BROKEN_MAINTENANCE}{stem}" if _is_maintenance(stem) else stem
        free = candidates.setdefault(name, _list_stand_ins(name))
        named[next(dag_id for dag_id in free if dag_id not in taken and dag_id not in named)] = file
    return named


def _list_stand_ins(name: str) -> Iterator[str]:
    yield name
    yield f"{name}{BROKEN}"
    yield from (f"{name}{BROKEN}_{number}" for number in count(2))


_BROKEN_MAINTENANCE = "broken__"


def can_be_pipeline(dag_id: str) -> bool:
    """Return whether a pipeline can have the id of a DAG as its name: it is not that of one of Hindcast's own DAGs."""
    return not _is_maintenance(dag_id) and not dag_id.endswith((RELEASE, PREVIEW))


def _is_maintenance(dag_id: str) -> bool:
    return dag_id == MAINTENANCE or dag_id.startswith(f"{MAINTENANCE}__")


def list_sql_functions(contract: Contract) -> dict[str, str]:
    """Return the names of all functions of Spark SQL that a contract can give, each with its table."""
    tables = {f"{contract.pipeline}_{name}": name for name in (*contract.topics, *contract.views)}
    functions = {f"{name}{ending}": table for name, table in tables.items() for ending in _SUFFIXES}
    return {f"{contract.pipeline}{MOMENT}": "the moments of its runs", **tables, **functions}


_SUFFIXES = (AS_OF, BETWEEN, CLOSED_UP_TO)


def name_preview(run_id: str) -> str:
    """Return the id of the run of the preview's DAG that a run of the pipeline's own DAG starts, if it is a preview."""
    return f"preview__{run_id}"
