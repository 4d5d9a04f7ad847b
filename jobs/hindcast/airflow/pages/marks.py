"""The contract of a page, with the marks that say which values it may not show (plan/marks.py)."""

from __future__ import annotations

from collections.abc import Collection

from hindcast.airflow.pages import catalog
from hindcast.common.errors import QueryError
from hindcast.common.settings import Settings
from hindcast.contract import Contract
from hindcast.plan import marks
from hindcast.store import tables


def load_marked_contract(settings: Settings, pipeline: str, readable: Collection[str]) -> Contract:
    """Return the contract of a pipeline, with the marks of other pipelines; raise what `catalog.load_contract` does."""
    contract = catalog.load_contract(settings, pipeline, readable)
    return marks.add_marks_of_others(settings, contract, catalog.build_catalog_finder(settings))


def refuse_hidden_key(settings: Settings, contract: Contract, name: str) -> frozenset[str]:
    """Return the hidden columns of a table; QueryError if one is of its key, as the pages ask by key."""
    hidden = marks.find_hidden_columns(settings, contract, name)
    if hidden & set(tables.locate_table("", contract, name).key):
        raise QueryError(
            f"the key of {name} is sensitive",
            where=contract.pipeline,
            fix="choose another table; the pages show no rows of this one",
        )
    return hidden
