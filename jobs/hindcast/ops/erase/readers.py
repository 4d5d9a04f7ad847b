"""Who reads the tables of a pipeline, and what remains to be done there after an erasure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hindcast.contract import Contract
from hindcast.contract.bound import BoundContract
from hindcast.contract.load import try_load_all


class Readers(NamedTuple):
    """The readers of a pipeline's tables: the `views` of other pipelines that are made of them (their rows are their
    own), and the names of the `unread` contract files, which are invalid and may read them too.
    """

    views: tuple[str, ...]
    unread: tuple[str, ...] = ()


def find_readers(contract: BoundContract, names: Sequence[str]) -> Readers:
    """Return the readers of these tables of a pipeline; no contract of another pipeline raises an error."""
    places = {f"{contract.pipeline}.{name}" for name in names}
    found = try_load_all(contract.settings.schemas)
    views = (
        f"{other.pipeline}.{view}"
        for other in found.values()
        if isinstance(other, Contract)
        for name, source in other.inputs.items()
        if source.table in places
        for view in other.ordered_views
        if name in other.list_upstream(view)
    )
    unread = (path.name for path, other in found.items() if not isinstance(other, Contract))
    return Readers(tuple(sorted({*views})), tuple(sorted(unread)))


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
