"""Who reads the tables of a pipeline, and what remains to be done there after an erasure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from hindcast.contract import Contract
from hindcast.contract.bound import BoundContract
from hindcast.contract.folder import try_load_all


class Readers(NamedTuple):
    """The readers of a pipeline's tables: the `views` of other pipelines that are made of them, also by way of a third
    pipeline (their rows are their own), and the names of the `unread` contract files, which are invalid and may read
    them too.
    """

    views: tuple[str, ...]
    unread: tuple[str, ...] = ()


def find_readers(contract: BoundContract, names: Sequence[str]) -> Readers:
    """Return the readers of these tables of a pipeline; no contract of another pipeline raises an error."""
    places = {f"{contract.pipeline}.{name}" for name in names}
    found = try_load_all(contract.settings.schemas, contract.settings.choice.for_others)
    others = [other for other in found.values() if isinstance(other, Contract)]
    views, new = set[str](), places
    while new:
        new = {f"{other.pipeline}.{view}" for other in others for view in list_reading_views(other, new)} - views
        views |= new
    unread = (path.name for path, other in found.items() if not isinstance(other, Contract))
    return Readers(tuple(sorted(views - places)), tuple(sorted(unread)))


def list_reading_views(contract: Contract, places: Collection[str]) -> set[str]:
    """Return the views of a contract that are made of inputs from some `places` (pipeline.table)."""
    read = {name for name, source in contract.inputs.items() if source.table in places}
    return {view for view in contract.ordered_views if not read.isdisjoint(contract.list_upstream(view))}


def describe_readers(readers: Readers) -> list[str]:
    """Return what to do about other pipelines that read the tables, as lines."""
    lines = [f"Whether {name} reads these tables is not known: it is invalid." for name in readers.unread]
    if readers.views:
        lines.append(
            f"Other pipelines read it: {', '.join(readers.views)}. Remove their folders; their next runs derive them "
            "from scratch."
        )
        lines.append("What their gates found stays in their failing, gates and reports, which may quote it.")
    return lines
