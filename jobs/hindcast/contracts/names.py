"""What a contract's names become elsewhere: DAGs, folders, functions of Spark SQL. No two may become the same."""

from __future__ import annotations

from collections.abc import Iterator

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


def sql_functions(contract: Contract) -> dict[str, str]:
    """Return the names of all functions of Spark SQL that a contract can make, each with what it is made for."""
    tables = {f"{contract.pipeline}_{name}": name for name in (*contract.topics, *contract.views)}
    made = {f"{name}{ending}": table for name, table in tables.items() for ending in _ENDINGS}
    return {f"{contract.pipeline}{MOMENT}": "the moments of its runs", **tables, **made}


_ENDINGS = (AS_OF, BETWEEN, CLOSED_UP_TO)
