"""Rules that judge all rows at once: by a share of them, how many they are, or how new."""

from __future__ import annotations

import math
from datetime import timedelta
from fractions import Fraction
from statistics import median

from hindcast.quality.rules.base import WHICH, ShareRule, length, moment, quoted

FATES = (
    *("accepted", "expired", "malformed", "null_key", "no_timestamp", "time_skew"),
    *("no_change", "gone", "no_record"),
)


class ExpectTableToBeFresh(ShareRule):
    """The newest row that starts at `until` or before starts at most `within` (a duration) before it.

    Observed: how many seconds before. Rows that start after `until` say nothing.
    """

    about = "table"
    within: str
    until: str
    start: str = "validFrom"

    def sql(self) -> str:
        start, until = quoted(self.start), moment(self.until)
        newest = f"unix_micros(max({start}) FILTER (WHERE {start} <= timestamp_micros({until})))"
        rows = f"SELECT {until} - {newest} AS _behind, count(*) AS checked FROM {{batch}}"
        fine = f"coalesce(_behind <= {length(self.within)}, false)"
        return f"SELECT _behind / 1000000 AS observed, {fine} AS fine, checked FROM ({rows})"

    def found(self, observed: float | None, checked: int) -> str:
        if observed is None:
            return f"none of {checked:,} rows starts at {self.until} or before"
        behind = timedelta(seconds=round(observed))
        return f"the newest row starts {behind} before {self.until}; at most {self.within} is fine"


class ExpectOffsetsToBeConserved(ShareRule):
    """Every planned offset has exactly one fate, and no other offset has one.

    `planned`: the half-open ranges of each partition. A record stands for `offsets` offsets from its own on. Observed:
    how many offsets are wrong. Checked: how many are planned, or observed where none is.

        planned {0: [[3, 9]]}    3 accepted, 4 expired, 4 gone (of 4 offsets)    ->    2 are wrong: 4 twice, 8 missing
    """

    about = "records"
    planned: dict[int, list[list[int]]]

    def sql(self) -> str:
        ranges = [(partition, *ends) for partition, of_one in self.planned.items() for ends in of_one]
        marks = [f"({p}, {at}, {sign}, 0, 0)" for p, *ends in ranges for at, sign in zip(ends, (1, -1), strict=True)]
        plan = f" UNION ALL SELECT * FROM VALUES {', '.join(marks)}" if marks else ""
        # What begins somewhere adds 1 there and takes it away where it ends: sums say how many there are in between.
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
        # None or one is planned of each, so this many must be there, with a fate.
        right = "_planned = _seen AND _seen = _fated"
        wrong = f"SELECT coalesce(sum(length), 0) AS observed FROM ({spans}) WHERE NOT ({right})"
        checked = sum(end - start for _, start, end in ranges) or "observed"
        return f"SELECT observed, observed = 0 AS fine, {checked} AS checked FROM ({wrong})"

    def found(self, observed: float | None, checked: int) -> str:
        return (
            f"{observed or 0:,.0f} offsets have no fate, more than one, or were not planned; {checked:,} were planned"
        )


class ExpectShareOfRecordsToBeAtMost(ShareRule):
    """At most `share` (0 to 1) of the records that are new to the table are late, expired or quarantined (`which`)."""

    about = "unpublished"
    which: str
    share: float

    def sql(self) -> str:
        read = "{batch} WHERE coalesce(fate NOT IN ('gone', 'no_record'), true)"
        return _share(WHICH[self.which], "offsets", read, Fraction(0), _exact(self.share))

    def found(self, observed: float | None, checked: int) -> str:
        return f"{observed or 0:.1%} of {checked:,} records are {self.which}; at most {self.share:.1%} is fine"


class ExpectShareOfUnmatchedToBeAtMost(ShareRule):
    """At most `share` (0 to 1) of the events meet no version."""

    about = "events"
    share: float

    def sql(self) -> str:
        return _share("matched IS NOT TRUE", "1", "{batch}", Fraction(0), _exact(self.share))

    def found(self, observed: float | None, checked: int) -> str:
        return f"{observed or 0:.1%} of {checked:,} events meet no version; at most {self.share:.1%} is fine"


class ExpectRowCountToBeNearLastRuns(ShareRule):
    """The change has between 1/`factor` and `factor` times as many rows as the median of the last `runs` had.

    `earlier`: the counts of earlier runs, the newest last. Checked: with how many of them it was compared, so that an
    empty batch is judged too. A run that opens nothing does not ask it: that nothing comes, freshness tells.
    """

    about = "change"
    runs: int = 5
    factor: float
    earlier: list[float]

    def sql(self) -> str:
        last, fine = self.earlier[-self.runs :], "CAST(NULL AS BOOLEAN)"
        if last:
            fine = "count(*) BETWEEN {} AND {}".format(*self.bounds())
        return f"SELECT count(*) AS observed, {fine} AS fine, {len(last)} AS checked FROM {{batch}}"

    def bounds(self) -> tuple[int, int]:
        """How many rows are fine, from and to."""
        middle, factor = median(map(_exact, self.earlier[-self.runs :])), _exact(self.factor)
        return math.ceil(middle / factor), math.floor(middle * factor)

    def found(self, observed: float | None, checked: int) -> str:
        low, high = self.bounds()
        return f"{observed or 0:,.0f} rows; by the last {checked} runs, {low:,} to {high:,} are fine"


class ExpectNullShareToBeNearLastRuns(ShareRule):
    """The share of nulls in `column` is at most `at_most` (0 to 1) away from the median of the last `runs`.

    `earlier`: the shares of earlier runs, the newest last. Without any the share is observed, and nothing is checked.
    """

    about = "change"
    column: str
    runs: int = 5
    at_most: float
    earlier: list[float]

    def sql(self) -> str:
        middle = median(map(_exact, self.earlier[-self.runs :] or [0.0]))
        away = _exact(self.at_most)
        share = _share(f"{quoted(self.column)} IS NULL", "1", "{batch}", middle - away, middle + away)
        return share if self.earlier else f"SELECT observed, fine, 0 AS checked FROM ({share})"

    def found(self, observed: float | None, checked: int) -> str:
        middle = median(self.earlier[-self.runs :])
        return (
            f"{observed or 0:.1%} of {checked:,} rows are null; the last runs had {middle:.1%}, "
            f"and at most {self.at_most:.1%} more or less is fine"
        )


def _share(those: str, weight: str, rows: str, low: Fraction, high: Fraction) -> str:
    """The query of which share of some rows, by weight, `those` are, and whether it is from `low` to `high`.

    Quotient and bounds are each the double next to what they stand for, so a share that is equal to a bound is fine.
    """
    counts = f"coalesce(sum(CASE WHEN {those} THEN {weight} END), 0) AS _those, coalesce(sum({weight}), 0) AS checked"
    observed = f"SELECT _those / nullif(checked, 0) AS observed, checked FROM (SELECT {counts} FROM {rows})"
    fine = f"observed BETWEEN double('{float(low)}') AND double('{float(high)}')"
    return f"SELECT observed, {fine} AS fine, checked FROM ({observed})"


def _exact(number: float) -> Fraction:
    """The number as it is written: 0.1 is a tenth."""
    return Fraction(str(number))
