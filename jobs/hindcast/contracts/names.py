"""What a contract's names become elsewhere: DAGs, folders, functions of Spark SQL. No two may become the same."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from itertools import count
from pathlib import Path

from hindcast.contracts.bounds import NAME
from hindcast.contracts.model import Contract
from hindcast.contracts.views import Complaint

FOLDERS = (
    *("runs", "quarantine", "logs", "fates", "schemas", "emitted", "kept", "gates", "failing"),
    *("trimmed", "base", "rollover"),
)
"""Names in a pipeline's folder of the warehouse that are not for topics or views."""

RELEASE = "__release"
"""What ends the id of the DAG that asks a person about a pipeline's held changes."""

PREVIEW = "__preview"
"""What ends the id of the DAG that previews a pipeline."""

BROKEN = "__broken"
"""What ends the id of the DAG that stands in for a broken contract, where its file's name is taken."""

MAINTENANCE = "hindcast_maintenance"
"""The id of the DAG that maintains the tables of all pipelines."""

AS_OF, BETWEEN, CLOSED_UP_TO, MOMENT = "_as_of", "_between", "__closed_up_to", "__moment"
"""What ends the names of table functions besides that of the table itself (hindcast.functions)."""


def complaints(contract: Contract) -> Iterator[Complaint]:
    """Yield every complaint about a name that is taken by something made for another."""
    if contract.pipeline == MAINTENANCE or contract.pipeline.endswith((RELEASE, PREVIEW)):
        found = f"'{contract.pipeline}' is the name of one of our own DAGs"
        yield Complaint(
            ("pipeline",), found, f"choose a name other than {MAINTENANCE} that does not end in {RELEASE} or {PREVIEW}"
        )
    for part in ("topics", "views"):
        for name in getattr(contract, part):
            if name in FOLDERS:
                yield Complaint((part, name), f"'{name}' is the name of one of our own tables", "choose another name")
    tables = {name: (part, name) for part in ("topics", "views") for name in getattr(contract, part)}
    for name, place in tables.items():
        for ending in _ENDINGS:
            if name.endswith(ending) and (other := name.removesuffix(ending)) in tables:
                found = (
                    f"'{name}': '{other}' makes a function {contract.pipeline}_{name} of Spark SQL, and so does this"
                )
                yield Complaint(place, found, "choose another name")


def dag_ids(contract: Contract) -> list[str]:
    """Return the ids of the DAGs that are made of a contract."""
    endings = ("", PREVIEW, RELEASE) if contract.can_hold else ("", PREVIEW)
    return [f"{contract.pipeline}{ending}" for ending in endings]


def name_stand_ins(files: Iterable[Path], taken: Collection[str]) -> dict[str, Path]:
    """Return the ids of the DAGs that stand in for contract files that do not load, each with its file.

    `taken`: the ids of other DAGs. Airflow takes only some characters, and so many.
    """
    named: dict[str, Path] = {}
    for file in files:
        stem = re.sub(r"[^A-Za-z0-9_.-]", "_", file.stem)[:NAME]
        free = (f"{stem}{BROKEN * n}" for n in count())
        named[next(it for it in free if it not in taken and it not in named and it != MAINTENANCE)] = file
    return named


def sql_functions(contract: Contract) -> dict[str, str]:
    """Return the names of all functions of Spark SQL that a contract can make, each with what it is made for."""
    tables = {f"{contract.pipeline}_{name}": name for name in (*contract.topics, *contract.views)}
    made = {f"{name}{ending}": table for name, table in tables.items() for ending in _ENDINGS}
    return {f"{contract.pipeline}{MOMENT}": "the moments of its runs", **tables, **made}


_ENDINGS = (AS_OF, BETWEEN, CLOSED_UP_TO)
