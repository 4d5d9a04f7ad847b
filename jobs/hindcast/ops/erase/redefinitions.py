"""Views that were defined otherwise before: a forgetting finds their rows by today's definition only.

What an earlier definition derived from a record may be in rows that today's does not derive from it: of a join that is
gone, an aggregate or a condition that has changed. Nothing in such rows shows that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hindcast.contract import Contract
from hindcast.contract.definition import list_fields
from hindcast.plan import definitions
from hindcast.plan.runs import Run

_WITHOUT_ROWS = ("expect", "hold", "sensitive", "keep", "widen")
"""Fields of a view that decide nothing about what its rows are made of."""
_INPUTS = ("stream", "table", "join.stream", "join.table")


def find_redefined_views(past: Iterable[Run], contract: Contract, topic: str) -> list[str]:
    """Return the views that had another definition in an earlier run, or are made of such a view, and that are or were
    made of a topic. Views of the kafka reading are left out: they start from scratch.
    """
    runs = list(past)
    now = list_fields(contract)
    before = {run.plan.contract: definitions.find_fields(runs, run.plan.contract) for run in runs}
    earlier = [fields for fields in before.values() if fields is not None]
    views = [name for name in contract.ordered_views if contract.views[name].semantics == "corrected"]
    own = {
        name
        for name in views
        for fields in earlier
        if (was := _view_fields(fields, name)) and was != _view_fields(now, name)
    }
    return [
        name
        for name in views
        if own.intersection(contract.list_upstream(name))
        and any(topic in _list_upstream(fields, name) for fields in (now, *earlier))
    ]


def _view_fields(fields: Mapping[str, str], name: str) -> dict[str, str]:
    """Return the fields of a contract that define the rows of a view, by their place in it."""
    start = f"views.{name}."
    own = {place.removeprefix(start): text for place, text in fields.items() if place.startswith(start)}
    return {place: text for place, text in own.items() if place.split(".")[0] not in _WITHOUT_ROWS}


def _list_upstream(fields: Mapping[str, str], name: str) -> list[str]:
    """Return a view of a contract and everything that it is derived from."""
    upstream = [name]
    for table in upstream:
        own = _view_fields(fields, table)
        upstream += [own[place] for place in _INPUTS if place in own and own[place] not in upstream]
    return upstream
