"""Short labels for the moments of an axis: what all of them share, a day or a year, is said once. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import UTC, datetime

from hindcast.query.show import format_moment
from hindcast.store.store_formats import UNKNOWN_TIME

MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]


def label_moments(moments: Collection[datetime], *, rounds: bool = False) -> tuple[str, dict[datetime, str]]:
    """Return what moments have in common, a day, a year or nothing (""), and a short label of each.

    `rounds`: leave out the seconds, or their fractions, if the labels differ without them.

        label_moments([2026-02-04 15:03, 2026-02-04 16:00]) -> "2026-02-04", {...: "15:03", ...: "16:00"}
        label_moments([2026-02-04, 2026-03-01]) -> "2026", {...: "4 Feb", ...: "1 Mar"}
    """
    known = {moment: moment.astimezone(UTC) for moment in moments if moment != UNKNOWN_TIME}
    shortened = _round_moments(known) if rounds else known
    days, years = {utc.date() for utc in known.values()}, {utc.year for utc in known.values()}
    labels = dict.fromkeys(moments, format_moment(UNKNOWN_TIME))
    if len(days) == 1:
        labels |= {moment: _format_clock(utc) or "00:00" for moment, utc in shortened.items()}
        return next(iter(days)).isoformat(), labels
    if len(years) == 1:
        labels |= {moment: f"{_format_day(utc)} {_format_clock(utc)}".strip() for moment, utc in shortened.items()}
        return str(*years), labels
    return "", labels | {moment: format_moment(utc) for moment, utc in shortened.items()}


def _format_day(moment: datetime) -> str:
    return f"{moment.day} {MONTHS[moment.month - 1]}"


def _format_clock(moment: datetime) -> str:
    """Return the time of the day in its shortest form; nothing at midnight."""
    return format_moment(moment)[11:]


def _round_moments(moments: Mapping[datetime, datetime]) -> Mapping[datetime, datetime]:
    """Return moments to the minute, or to the second, if they all differ then as they do now."""
    seconds = {moment: utc.replace(microsecond=0) for moment, utc in moments.items()}
    minutes = {moment: utc.replace(second=0) for moment, utc in seconds.items()}
    for rounded in (minutes, seconds):
        if len({*rounded.values()}) == len(moments):
            return rounded
    return moments
