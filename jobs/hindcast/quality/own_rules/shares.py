"""Rules that judge all rows at once: by a share of them, by their number, or by their age; rows.py has the others."""

from __future__ import annotations

import math
from datetime import timedelta
from fractions import Fraction
from statistics import median

from hindcast.bitemporal.fates import FATES
from hindcast.quality.own_rules.base import RECORD_CONDITIONS, ShareRule, parse_length, parse_micros, quote_name


class ExpectTableToBeFresh(ShareRule):
    """The newest row that starts at or before `until` starts at most `within` (a duration) before it.

    Observed: by how many seconds. Rows that start after `until` are ignored.
    """

    row_set = "table"
    within: str
    until: str
    start: str = "validFrom"

    def build_query(self) -> str:
        start, until = quote_name(self.start), parse_micros(self.until)
        newest = f"unix_micros(max({start}) FILTER (WHERE {start} <= timestamp_micros({until})))"
        rows = f"SELECT {until} - {newest} AS _behind, count(*) AS checked FROM {{batch}}"
        fine = f"coalesce(_behind <= {parse_length(self.within)}, false)"
        return f"SELECT _behind / 1000000 AS observed, {fine} AS fine, checked FROM ({rows})"

    def describe_failure(self, observed: float | None, checked: int) -> str:
        if observed is None:
            return f"none of {checked:,} rows starts at {self.until} or before"
        behind = timedelta(seconds=round(observed))
        return f"the newest row starts {behind} before {self.until}; at most {self.within} is fine"


class ExpectOffsetsToBeConserved(ShareRule):
    """Every planned offset has exactly one fate, and no other offset has one.

    `planned`: the half-open ranges of each partition. A record stands for `offsets` offsets, starting at its own.
    Observed: the number of wrong offsets. Checked: the number of planned offsets, or the observed if none is planned.

        planned {0: [[3, 9]]}    3 accepted, 4 expired, 4 gone (of 4 offsets)    ->    2 are wrong: 4 twice, 8 missing
    """

    row_set = "records"
    planned: dict[int, list[list[int]]]

    def build_query(self) -> str:
        ranges = [(partition, *ends) for partition, spans in self.planned.items() for ends in spans]
        marks = [f"({p}, {at}, {sign}, 0, 0)" for p, *ends in ranges for at, sign in zip(ends, (1, -1), strict=True)]
        plan = f" UNION ALL SELECT * FROM VALUES {', '.join(marks)}" if marks else ""
        # A range adds 1 where it begins and subtracts 1 where it ends: running sums count the ranges in between.
        at, fated = "coalesce(`offset`, -1)", f"CASE WHEN fate IN {FATES} AND offsets > 0 THEN 1 ELSE 0 END"
        ends = f"stack(2, {at}, 1, {fated}, {at} + greatest(coalesce(offsets, 1), 1), -1, -{fated})"
        records = f"{{batch}} LATERAL VIEW {ends} _ends AS _at, _seen, _fated"
        changes = f"SELECT `partition` AS _p, _at, 0 AS _planned, _seen, _fated FROM {records}{plan}"
        counts = ("_planned", "_seen", "_fated")
        places = f"SELECT _p, _at, {', '.join(f'sum({n}) AS {n}' for n in counts)} FROM ({changes}) GROUP BY _p, _at"
        spans = (
            f"SELECT (lead(_at) OVER _w) - _at AS length, {', '.join(f'sum({n}) OVER _w AS {n}' for n in counts)} "
            f"FROM ({places}) WHERE {' OR '.join(f'{n} <> 0' for n in counts)} "
            "WINDOW _w AS (PARTITION BY _p ORDER BY _at)"
        )
        # An offset is planned once or not at all, so it must be seen, with a fate, as often.
        right = "_planned = _seen AND _seen = _fated"
        wrong = f"SELECT coalesce(sum(length), 0) AS observed FROM ({spans}) WHERE NOT ({right})"
        checked = sum(end - start for _, start, end in ranges) or "observed"
        return f"SELECT observed, observed = 0 AS fine, {checked} AS checked FROM ({wrong})"

    def describe_failure(self, observed: float | None, checked: int) -> str:
        return (
            f"{observed or 0:,.0f} offsets have no fate, more than one, or were not planned; {checked:,} were planned"
        )


class ExpectShareOfRecordsToBeAtMost(ShareRule):
    """At most `share` (0 to 1) of the records that are new to the table are late, expired or quarantined (`which`)."""

    row_set = "unpublished"
    which: str
    share: float

    def build_query(self) -> str:
        read = "{batch} WHERE coalesce(fate NOT IN ('gone', 'no_record'), true)"
        return _share_query(RECORD_CONDITIONS[self.which], "offsets", read, Fraction(0), _parse_exactly(self.share))

    def describe_failure(self, observed: float | None, checked: int) -> str:
        return f"{observed or 0:.1%} of {checked:,} records are {self.which}; at most {self.share:.1%} is fine"


class ExpectShareOfUnmatchedToBeAtMost(ShareRule):
    """At most `share` (0 to 1) of the events meet no version."""

    row_set = "events"
    share: float

    def build_query(self) -> str:
        return _share_query("matched IS NOT TRUE", "1", "{batch}", Fraction(0), _parse_exactly(self.share))

    def describe_failure(self, observed: float | None, checked: int) -> str:
        return f"{observed or 0:.1%} of {checked:,} events meet no version; at most {self.share:.1%} is fine"


class ExpectRowCountToBeNearLastRuns(ShareRule):
    """The change has between 1/`factor` and `factor` times as many rows as the median of the last `runs`.

    `earlier`: the counts of earlier runs, the newest last. Checked: the number of counts compared, so that an empty
    batch is judged too. A run that opens nothing skips this rule; use the freshness rule to notice missing data.
    """

    row_set = "change"
    runs: int = 5
    factor: float
    earlier: list[float]

    def build_query(self) -> str:
        last, fine = self.earlier[-self.runs :], "CAST(NULL AS BOOLEAN)"
        if last:
            fine = "count(*) BETWEEN {} AND {}".format(*self.accepted_range())
        return f"SELECT count(*) AS observed, {fine} AS fine, {len(last)} AS checked FROM {{batch}}"

    def accepted_range(self) -> tuple[int, int]:
        """Return the lowest and the highest accepted number of rows."""
        middle, factor = median(map(_parse_exactly, self.earlier[-self.runs :])), _parse_exactly(self.factor)
        return math.ceil(middle / factor), math.floor(middle * factor)

    def describe_failure(self, observed: float | None, checked: int) -> str:
        low, high = self.accepted_range()
        return f"{observed or 0:,.0f} rows; by the last {checked} runs, {low:,} to {high:,} are fine"


class ExpectNullShareToBeNearLastRuns(ShareRule):
    """The share of nulls in `column` is at most `at_most` (0 to 1) away from the median of the last `runs`.

    `earlier`: the shares of earlier runs, the newest last. Without any the share is observed, and nothing is checked.
    """

    row_set = "change"
    column: str
    runs: int = 5
    at_most: float
    earlier: list[float]

    def build_query(self) -> str:
        middle = median(map(_parse_exactly, self.earlier[-self.runs :] or [0.0]))
        away = _parse_exactly(self.at_most)
        share = _share_query(f"{quote_name(self.column)} IS NULL", "1", "{batch}", middle - away, middle + away)
        return share if self.earlier else f"SELECT observed, fine, 0 AS checked FROM ({share})"

    def describe_failure(self, observed: float | None, checked: int) -> str:
        middle = median(self.earlier[-self.runs :])
        return (
            f"{observed or 0:.1%} of {checked:,} rows are null; the last runs had {middle:.1%}, "
            f"and at most {self.at_most:.1%} more or less is fine"
        )


def _share_query(those: str, weight: str, rows: str, low: Fraction, high: Fraction) -> str:
    """Return SQL for the weighted share of `those` among some rows, and whether it is between `low` and `high`.

    Quotient and bounds are rounded to the nearest double alike, so a share that equals a bound is fine.
    """
    counts = f"coalesce(sum(CASE WHEN {those} THEN {weight} END), 0) AS _those, coalesce(sum({weight}), 0) AS checked"
    observed = f"SELECT _those / nullif(checked, 0) AS observed, checked FROM (SELECT {counts} FROM {rows})"
    fine = f"observed BETWEEN double('{float(low)}') AND double('{float(high)}')"
    return f"SELECT observed, {fine} AS fine, checked FROM ({observed})"


def _parse_exactly(number: float) -> Fraction:
    """Return the number as it is written: 0.1 is a tenth."""
    return Fraction(str(number))
