"""What a value was before a run corrected it, and what it became later: in sentences, from the rows of a plane."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from datetime import datetime

from hindcast.airflow.pages.value_colours import format_value
from hindcast.common.json_values import JsonObject, JsonValue, parse_object
from hindcast.query.key_history import MASK
from hindcast.query.show import format_moment

MAX_COLUMNS = 2
"""Of how many columns it is said."""


def describe_turns(
    row: JsonObject, others: Sequence[JsonObject], key: Collection[str], as_of: datetime, known_at: datetime
) -> list[str]:
    """Return sentences about a row that is current at `known_at`: what its values were until the run that opened it, of
    a version `as_of` a moment, and what they became after its period. `others`: rows of its key (`RowFormatter`).
    """
    opened, ended = _parse(row["systemFrom"]), _parse(row.get("validTo"))
    before = [it for it in others if opened and _parse(it["systemTo"]) == opened and _is_same(row, it, as_of)]
    later = [it for it in others if ended and _parse(it["validFrom"]) == ended and _is_current(it, known_at)]
    sentences = []
    for other in before[:1]:
        run = f"run {row['openedBy']}" if row.get("openedBy") else "a later run"
        sentences += [f"{name} was {value} until {run}." for name, value in _list_differences(row, other, key)]
    for other in later[:1]:
        moment = format_moment(ended) if ended else ""
        sentences += [f"{name} became {value} at {moment}." for name, value in _list_differences(row, other, key)]
    return sentences


def _list_differences(row: JsonObject, other: JsonObject, key: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield the first values of another row that are not those of a row."""
    own, its = parse_object(row["values"]), parse_object(other["values"])
    names = [name for name in its if name not in key and name in own and own[name] != its[name]]
    for name in [name for name in names if MASK not in (own[name], its[name])][:MAX_COLUMNS]:
        yield name, format_value(its[name]) or "empty"


def _is_same(row: JsonObject, other: JsonObject, as_of: datetime) -> bool:
    """Return whether another row was of the same event or window, or of a version `as_of` a moment."""
    if "validFrom" in row:
        return _is_within(other, as_of)
    return all(row.get(name) == other.get(name) for name in ("timestamp", "windowStart", "windowEnd", "records"))


def _is_within(row: JsonObject, moment: datetime) -> bool:
    since, until = _parse(row["validFrom"]), _parse(row["validTo"])
    return since is not None and since <= moment and (until is None or moment < until)


def _is_current(row: JsonObject, known_at: datetime) -> bool:
    since, until = _parse(row["systemFrom"]), _parse(row["systemTo"])
    return since is not None and since <= known_at and (until is None or known_at < until)


def _parse(moment: JsonValue) -> datetime | None:
    return datetime.fromisoformat(moment) if isinstance(moment, str) else None
