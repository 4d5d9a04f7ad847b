"""The time machine: the plane of one key, a crosshair on it, and what was answered there.

Valid time goes across, system time up. The crosshair is at (as of, known at); a second known-at gives a diff. Moments
and keys come as text, from the address: it holds all of the page's state.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Literal

import pyarrow.compute as pc

from hindcast import horizon, read
from hindcast.contracts import Contract, shapes
from hindcast.contracts.shapes import PERIODS
from hindcast.errors import QueryError
from hindcast.pages import drawing, histories
from hindcast.pages.drawing import Axis
from hindcast.pages.histories import History, Some
from hindcast.pages.made_of import records
from hindcast.pages.why import explain
from hindcast.planning import journal
from hindcast.questions import Question
from hindcast.settings import Settings
from hindcast.show import plain

DRAWN = 300
"""So many rectangles of a key are drawn: the nearest to the crosshair."""

ANSWERS = 10
CHANGES = 100

Row = dict[str, Any]


@dataclass(frozen=True)
class Asked:
    """What the address says, as text; None for what it leaves out."""

    table: str | None = None
    key: str | None = None
    asOf: str | None = None  # noqa: N815  # as the address has it
    knownAt: str | None = None  # noqa: N815
    comparedWith: str | None = None  # noqa: N815
    scale: Literal["even", "time"] | None = None


def page(now: Settings, contract: Contract, readable: Collection[str], asked: Asked) -> dict[str, Any]:
    """What the page of a pipeline shows; QueryError for what cannot be asked."""
    pipeline, warehouse = contract.pipeline, now.warehouse
    names = [*contract.topics, *contract.views]
    name = asked.table or names[0]
    table = read.locate(warehouse, contract, name)
    marked = histories.secret(contract, name)
    told: dict[str, Any] = {
        "pipeline": pipeline,
        "tables": {it: shape.kind for it, shape in shapes(contract).items() if it in names},
        "readings": {it: view.semantics for it, view in contract.views.items()},
        "table": name,
        "keyColumns": list(table.key),
        "asked": asdict(asked) | {"table": name},
    }
    if asked.key is None:
        return told | {"suggested": histories.suggested(table, "")}
    past = journal.runs(warehouse, pipeline)
    known = _known(warehouse, pipeline, asked.knownAt) or read.last_known_at(warehouse, pipeline)
    other = _known(warehouse, pipeline, asked.comparedWith)
    history = histories.history(table, read.key_of(table, asked.key))
    at, given = horizon.of(table), read.moment_of(warehouse, pipeline, asked.asOf) if asked.asOf else None
    for moment in (known, *([other] if other else [])):
        horizon.refuse(table, at, Question(as_of=given), moment)
    as_of = given or max(_latest(history), at.at if at else _latest(history))
    near = history.near(as_of, DRAWN)
    there = history.at(as_of, known, ANSWERS)
    named = _Named(warehouse, contract, name, {run.known_at: run.number for run in past}, marked)
    first = there.rows[0] if there.rows else None
    return told | {
        "suggested": [],
        "key": asked.key,
        "kind": table.kind,
        "horizon": at.at.isoformat() if at else None,
        "asOf": as_of.isoformat(),
        "knownAt": known.isoformat(),
        "knownBy": named.run(known),
        "comparedWith": other.isoformat() if other else None,
        "plane": _plane(
            table.kind, near, as_of, [known, *([other] if other else [])], named, even=asked.scale != "time"
        ),
        "answer": {"rows": named.rows(there.rows), "total": there.total},
        "diff": _diff(history, known, other, named) if other else None,
        "why": explain(warehouse, contract, name, first, known, readable) if first else None,
    }


def keys(now: Settings, contract: Contract, name: str, beginning: str) -> dict[str, Any]:
    """A few keys of a table that begin so."""
    table = read.locate(now.warehouse, contract, name)
    histories.secret(contract, name)
    return {"keys": histories.suggested(table, beginning)}


@dataclass(frozen=True)
class _Named:
    """What tells a row to people: its values, its record, the runs that opened and closed it."""

    warehouse: str
    contract: Contract
    table: str
    runs: dict[datetime, int]
    marked: frozenset[str]

    def run(self, moment: datetime | None) -> int | None:
        """The run whose known-at this is."""
        return self.runs.get(moment) if moment else None

    def rows(self, rows: Sequence[Row]) -> list[Row]:
        """Rows as JSON has them."""
        return [self.row(row) for row in rows]

    def row(self, row: Row) -> Row:
        """One row: `values`, its periods, its `records` (topic, partition, offset), and by which runs."""
        lineage = {name: value for name, value in row.items() if name.startswith("_")}
        periods = [name for name in (*_PERIODS, "systemFrom", "systemTo") if name in row]
        values = {name: v for name, v in row.items() if name not in lineage and name not in periods}
        return {
            "values": histories.told(values, self.marked),
            **{name: plain(row[name]) for name in periods},
            "records": records(self.warehouse, self.contract, self.table, lineage),
            "openedBy": self.run(row["systemFrom"]),
            "closedBy": self.run(row["systemTo"]),
        }


_PERIODS = tuple(dict.fromkeys(name for names in PERIODS.values() for name in names))


def _known(warehouse: str, pipeline: str, text: str | None) -> datetime | None:
    """A known-at of the address, which must be one that can be answered."""
    if not text:
        return None
    moment = read.moment_of(warehouse, pipeline, text)
    read.answerable(warehouse, pipeline, moment)
    return moment


def _latest(history: History) -> datetime:
    """The last moment at which something begins."""
    found: datetime = pc.max(history.rows.column(history.start)).as_py()
    return found


def _plane(
    kind: str, near: Some, as_of: datetime, known: Sequence[datetime], named: _Named, *, even: bool
) -> dict[str, Any]:
    """The rows near the crosshair as rectangles, and the axes: places from 0 to 1, from the left and from below."""
    start, end = PERIODS[kind][0], PERIODS[kind][-1]
    across = drawing.axis(_moments(near.rows, start, end), even=even)
    up = drawing.axis(_moments(near.rows, "systemFrom", "systemTo"), even=even)
    rectangles = []
    for row in sorted(near.rows, key=lambda it: (it[start], it["systemFrom"])):
        left, bottom, top = across.place(row[start]), up.place(row["systemFrom"]), up.place(row["systemTo"])
        rectangle = {"x": left, "y": bottom, "width": across.place(row[end]) - left, "height": top - bottom}
        rectangles.append(rectangle | {"start": plain(row[start]), "end": plain(row[end])} | named.row(row))
    return {
        "rectangles": rectangles,
        "total": near.total,
        "across": _axis(across, {}),
        "up": _axis(up, named.runs),
        "asOf": across.place(as_of),
        "knownAt": [up.place(moment) for moment in known],
    }


def _moments(rows: Sequence[Row], start: str, end: str) -> list[datetime]:
    return [row[name] for row in rows for name in (start, end) if row[name] is not None]


def _axis(axis: Axis, runs: dict[datetime, int]) -> dict[str, Any]:
    """An axis as the page has it: labelled ticks, and the knots by which a place becomes a moment again."""
    ticks = [
        {"at": place, "label": f"run {runs[moment]}" if moment in runs else drawing.label(moment)}
        for place, moment in axis.ticks
    ]
    return {"ticks": ticks, "knots": [[place, moment.isoformat()] for place, moment in axis.knots]}


def _diff(history: History, known: datetime, other: datetime, named: _Named) -> dict[str, Any]:
    """What was believed at the later of two moments and not at the earlier, and the reverse."""
    earlier, later = sorted((known, other))
    if earlier == later:
        raise QueryError("the two known-ats are one", mend="compare with another")
    gained, lost = history.changed(later, earlier, CHANGES), history.changed(earlier, later, CHANGES)
    return {
        "earlier": earlier.isoformat(),
        "later": later.isoformat(),
        "gained": {"rows": named.rows(gained.rows), "total": gained.total},
        "lost": {"rows": named.rows(lost.rows), "total": lost.total},
    }
