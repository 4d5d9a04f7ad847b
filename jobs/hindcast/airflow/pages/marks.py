"""The columns whose values no page shows (plan/marks.py), by the contracts that the pages keep."""

from __future__ import annotations

from hindcast.airflow.pages import catalog
from hindcast.common.errors import QueryError
from hindcast.common.settings import Settings
from hindcast.contract import Contract
from hindcast.plan import marks
from hindcast.store import tables


def find_hidden_columns(settings: Settings, contract: Contract, name: str) -> frozenset[str]:
    """Return the hidden columns of a topic, view or input."""
    return marks.find_hidden_columns(settings, contract, name, catalog.load_contracts)


def refuse_hidden_key(settings: Settings, contract: Contract, name: str) -> frozenset[str]:
    """Return the hidden columns of a table; QueryError if one is of its key, as the pages ask by key."""
    hidden = find_hidden_columns(settings, contract, name)
    if hidden & set(tables.locate_table("", contract, name).key):
        raise QueryError(
            f"the key of {name} is sensitive",
            where=contract.pipeline,
            fix="choose another table; the pages show no rows of this one",
        )
    return hidden
