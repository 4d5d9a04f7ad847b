"""Hindcast's own rules, as custom expectations that Great Expectations knows once this module is imported.

A row rule asks for the rows that fail: `unexpected_rows_query` gives exactly these, with the columns of the batch. A
share rule asks for one number, its `observed_value`; `checked` says over how much, and over nothing it never succeeds.
Both make their query of their other parameters, over one of these batches:

| about | the rows | columns beside the user's |
| --- | --- | --- |
| change | that the run would open | those of the period, `systemFrom` |
| near | of the keys that it touches, in the span of what changes, as they would be | the same |
| keys | of the keys that it touches, all of them, as they would be | the same |
| plane | believed before near the change, and those that it would open | the same |
| table | of the whole table, as they would be | the same |
| records | of a topic's log, of this run | `partition, offset, offsets, timestamp, streamTime, fate` |
| unpublished | of a topic's log, since a run has published its table or was completed | the same |
| events | of a joined stream, of this run | `matched` |

Periods are half-open, without an end they last for ever. `key` names the key columns, `start` and `end` those of the
period. Moments are UTC unless they say otherwise. Names are quoted and moments counted, so that neither a name nor the
session's time zone changes what a query means.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from itertools import pairwise
from statistics import median
from typing import Any, ClassVar, Literal

from great_expectations.compatibility import pydantic
from great_expectations.expectations.core.unexpected_rows_expectation import UnexpectedRowsExpectation
from great_expectations.expectations.expectation import BatchExpectation
from great_expectations.validator.metric_configuration import MetricConfiguration

from hindcast.contracts.types import duration
from hindcast.errors import nearest
from hindcast.metrics import RowsWhere

FATES = ("accepted", "expired", "malformed", "null_key", "no_timestamp", "time_skew", "gone", "no_record")

WHICH = {
    "late": "`timestamp` < streamTime",
    "expired": "fate = 'expired'",
    "quarantined": "fate IS DISTINCT FROM 'accepted'",
}
"""Of which of the records that were read a share can be."""


class _Rule(BatchExpectation):
    """A rule whose query is made of its other parameters, which are checked when it is constructed."""

    about: ClassVar[Literal["change", "near", "keys", "plane", "table", "records", "unpublished", "events"]]
    row_level: ClassVar[bool]

    @pydantic.root_validator(pre=True)
    @classmethod
    def _known(cls, values: dict[str, Any]) -> dict[str, Any]:
        own = cls.__fields__.keys() - BatchExpectation.__fields__.keys() - set(cls.success_keys)
        for name in sorted(values.keys() - cls.__fields__.keys()):
            raise ValueError(f"no parameter '{name}'; {nearest(name, own)}")
        return values

    @pydantic.validator("*", pre=True)
    @classmethod
    def _fits(cls, value: Any, field: pydantic.fields.ModelField) -> Any:
        if field.name in _PARAMETERS and not (value is None and field.allow_none):
            fits, would_do = _PARAMETERS[field.name]
            if not fits(value):
                raise ValueError(f"{field.name} is {value!r}; write {would_do}")
        return value

    @pydantic.root_validator(skip_on_failure=True)
    @classmethod
    def _asked(cls, values: dict[str, Any]) -> dict[str, Any]:
        [query] = cls.success_keys
        made = cls.construct(**values).sql()
        if values[query] not in ("", made):
            raise ValueError(f"{query} is not what the other parameters make of it; leave it out")
        return {**values, query: made}

    @abstractmethod
    def sql(self) -> str:
        """The query over `{batch}`; ValueError where parameters do not go together."""


class _RowRule(_Rule, UnexpectedRowsExpectation):
    """Its query gives the rows that fail. GX counts them, and fetches some only for COMPLETE."""

    unexpected_rows_query: str = ""
    row_level = True

    def get_validation_dependencies(self, *args: Any, **kwargs: Any) -> Any:
        needed = super().get_validation_dependencies(*args, **kwargs)
        if needed.result_format["result_format"] != "COMPLETE":
            needed.remove_metric_configuration("unexpected_rows_query.table")
        return needed

    def _validate(self, metrics: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        return super()._validate({"unexpected_rows_query.table": None, **metrics}, *args, **kwargs)


class _ConditionRule(_RowRule):
    """Of each row alone: its `condition` tells the rows that fail, and is counted with what else is counted of them."""

    def sql(self) -> str:
        return f"SELECT * FROM {{batch}} WHERE {self.condition()}"

    @abstractmethod
    def condition(self) -> str:
        """What is true of a row that fails, its braces doubled."""

    def get_validation_dependencies(self, *args: Any, **kwargs: Any) -> Any:
        needed = super().get_validation_dependencies(*args, **kwargs)
        count = "unexpected_rows_query.row_count"
        rows = needed.metric_configurations[count].metric_domain_kwargs
        condition = {"condition": self.condition().format()}
        needed.set_metric_configuration(count, MetricConfiguration(RowsWhere.metric_name, rows, condition))
        return needed


class _ShareRule(_Rule):
    """Its query gives one row: `observed`, `fine` and `checked`."""

    query: str = ""
    row_level = False
    metric_dependencies = ("query.table",)
    success_keys = ("query",)

    def _validate(self, metrics: dict[str, Any], *_args: Any, **_kwargs: Any) -> dict[str, Any]:
        [answer] = metrics["query.table"]
        success = answer["fine"] is True and answer["checked"] > 0
        return {"success": success, "result": {"observed_value": answer["observed"], "checked": answer["checked"]}}

    @abstractmethod
    def found(self, observed: float | None, checked: int) -> str:
        """What is told of rows that fail."""


class _PeriodsRule(_RowRule):
    """Of the periods of a key, one after the other."""

    about: ClassVar[Literal["near", "keys"]] = "keys"
    key: list[str]
    start: str = "validFrom"
    end: str = "validTo"

    def in_time(self) -> str:
        """A query of every row as `_row`, with its start, its end, and how far the rows of its key before it reach."""
        start, end = _quoted(self.start), _quoted(self.end)
        until = f"coalesce({end}, timestamp_micros(9223372036854775807))"
        before = f"PARTITION BY {_listed(self.key)} ORDER BY {start}, {until} ROWS BETWEEN UNBOUNDED PRECEDING"
        reached = f"max(CASE WHEN {until} > {start} THEN {until} END) OVER ({before} AND 1 PRECEDING)"
        return f"SELECT struct(*) AS _row, {start} AS _start, {until} AS _until, {reached} AS _reached FROM {{batch}}"


class ExpectPeriodsToNotOverlap(_PeriodsRule):
    """No two periods of one key overlap; of two that do, the one fails that starts later, or else ends later.

    An empty period overlaps nothing.

        [0, 9) [2, 4) [5, ..)    ->    [2, 4) and [5, ..) fail: [0, 9) is still valid
    """

    about: ClassVar[Literal["near", "keys"]] = "near"

    def sql(self) -> str:
        return f"SELECT _row.* FROM ({self.in_time()}) WHERE _start < _until AND _reached > _start"


class ExpectPeriodsToNotBeEmpty(_ConditionRule):
    """Every period has a start, and ends after it if it ends."""

    about = "change"
    start: str = "validFrom"
    end: str = "validTo"

    def condition(self) -> str:
        start, end = _quoted(self.start), _quoted(self.end)
        return f"{start} IS NULL OR {end} <= {start}"


class ExpectPeriodsToHaveNoGaps(_PeriodsRule):
    """Of one key, no period but the first starts after the latest end of those before it.

    Where a gap lasts `shorter_than` (a duration) or longer, it is meant. An empty period is no part of a gap's ends.

        shorter_than 5 ms    [0, 2) [6, 8) [13, ..)    ->    [6, 8) fails, 4 ms after [0, 2); [13, ..) does not
    """

    shorter_than: str | None = None

    def sql(self) -> str:
        gap = "_reached < _start"
        if self.shorter_than is not None:
            gap += f" AND unix_micros(_reached) > unix_micros(_start) - {_length(self.shorter_than)}"
        return f"SELECT _row.* FROM ({self.in_time()}) WHERE _start < _until AND {gap}"


class ExpectKeysToHaveAtMostOneOpenVersion(_RowRule):
    """At most one version of a key has no end; where more have none, all of these fail."""

    about = "near"
    key: list[str]
    end: str = "validTo"

    def sql(self) -> str:
        count = f"count(*) OVER (PARTITION BY {_listed(self.key)})"
        opened = f"SELECT struct(*) AS _row, {count} AS _count FROM {{batch}} WHERE {_quoted(self.end)} IS NULL"
        return f"SELECT _row.* FROM ({opened}) WHERE _count > 1"


class ExpectSystemFromToNotRunBackwards(_ConditionRule):
    """No row is believed from later on than `known_at`, the run's known-at."""

    about = "plane"
    known_at: str

    def condition(self) -> str:
        return f"systemFrom IS NULL OR systemFrom > timestamp_micros({_moment(self.known_at)})"


class ExpectForeignKeysToBeFound(_RowRule):
    """Every foreign key, one `column` or a `column_list`, is in `table` at the moment its row starts.

    `found_in`: a view with that table's rows: `validFrom`, `validTo` and its key columns, `found_key`, in the order of
    ours. Where one of our columns is null there is no foreign key.

        table: curry [0, 5)    ->    curry at 4 is found, curry at 5 fails
    """

    about = "change"
    column: str | None = None
    column_list: list[str] | None = None
    table: str
    found_in: str
    found_key: list[str]
    start: str = "validFrom"

    def sql(self) -> str:
        columns = self.column_list or ([] if self.column is None else [self.column])
        if not columns or (self.column_list and self.column):
            raise ValueError("the foreign key is a column or a column_list; write one of them")
        if len(columns) != len(self.found_key):
            told = f"the foreign key is {', '.join(columns)}, the key of {self.table} is {', '.join(self.found_key)}"
            raise ValueError(f"{told}; write a column for each, in their order")
        ours, theirs = [f"_t.{_quoted(name)}" for name in columns], [f"_f.{_quoted(name)}" for name in self.found_key]
        given = " AND ".join(f"{column} IS NOT NULL" for column in ours)
        same = " AND ".join(f"{their} = {our}" for their, our in zip(theirs, ours, strict=True))
        start = f"_t.{_quoted(self.start)}"
        valid = f"_f.validFrom <= {start} AND (_f.validTo IS NULL OR _f.validTo > {start})"
        found = f"SELECT 1 FROM {_quoted(self.found_in)} AS _f WHERE {same} AND {valid}"
        return f"SELECT _t.* FROM {{batch}} AS _t WHERE {given} AND NOT EXISTS ({found})"


class ExpectTableToBeFresh(_ShareRule):
    """The newest row that starts at `until` or before starts at most `within` (a duration) before it.

    Observed: how many seconds before. Rows that start after `until` say nothing.
    """

    about = "table"
    within: str
    until: str
    start: str = "validFrom"

    def sql(self) -> str:
        start, until = _quoted(self.start), _moment(self.until)
        newest = f"unix_micros(max({start}) FILTER (WHERE {start} <= timestamp_micros({until})))"
        rows = f"SELECT {until} - {newest} AS _behind, count(*) AS checked FROM {{batch}}"
        fine = f"coalesce(_behind <= {_length(self.within)}, false)"
        return f"SELECT _behind / 1000000 AS observed, {fine} AS fine, checked FROM ({rows})"

    def found(self, observed: float | None, checked: int) -> str:
        if observed is None:
            return f"none of {checked:,} rows starts at {self.until} or before"
        behind = timedelta(seconds=round(observed))
        return f"the newest row starts {behind} before {self.until}; at most {self.within} is fine"


class ExpectOffsetsToBeConserved(_ShareRule):
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
            f"SELECT (lead(_at) OVER _w) - _at AS _length, {', '.join(f'sum({n}) OVER _w AS {n}' for n in counts)} "
            f"FROM ({places}) WHERE {' OR '.join(f'{n} <> 0' for n in counts)} "
            "WINDOW _w AS (PARTITION BY _p ORDER BY _at)"
        )
        # None or one is planned of each, so this many must be there, with a fate.
        right = "_planned = _seen AND _seen = _fated"
        wrong = f"SELECT coalesce(sum(_length), 0) AS observed FROM ({spans}) WHERE NOT ({right})"
        checked = sum(end - start for _, start, end in ranges) or "observed"
        return f"SELECT observed, observed = 0 AS fine, {checked} AS checked FROM ({wrong})"

    def found(self, observed: float | None, checked: int) -> str:
        return (
            f"{observed or 0:,.0f} offsets have no fate, more than one, or were not planned; {checked:,} were planned"
        )


class ExpectShareOfRecordsToBeAtMost(_ShareRule):
    """At most `share` (0 to 1) of the records that are new to the table are late, expired or quarantined (`which`)."""

    about = "unpublished"
    which: str
    share: float

    def sql(self) -> str:
        read = "{batch} WHERE coalesce(fate NOT IN ('gone', 'no_record'), true)"
        return _share(WHICH[self.which], "offsets", read, Fraction(0), _exact(self.share))

    def found(self, observed: float | None, checked: int) -> str:
        return f"{observed or 0:.1%} of {checked:,} records are {self.which}; at most {self.share:.1%} is fine"


class ExpectShareOfUnmatchedToBeAtMost(_ShareRule):
    """At most `share` (0 to 1) of the events meet no version."""

    about = "events"
    share: float

    def sql(self) -> str:
        return _share("matched IS NOT TRUE", "1", "{batch}", Fraction(0), _exact(self.share))

    def found(self, observed: float | None, checked: int) -> str:
        return f"{observed or 0:.1%} of {checked:,} events meet no version; at most {self.share:.1%} is fine"


class ExpectRowCountToBeNearLastRuns(_ShareRule):
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


class ExpectNullShareToBeNearLastRuns(_ShareRule):
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
        share = _share(f"{_quoted(self.column)} IS NULL", "1", "{batch}", middle - away, middle + away)
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


def _quoted(name: str) -> str:
    """A column or view in a query that GX formats: its braces would be places for something else."""
    doubled = name.replace("`", "``").replace("{", "{{").replace("}", "}}")
    return f"`{doubled}`"


def _listed(names: list[str]) -> str:
    return ", ".join(map(_quoted, names))


def _moment(text: str) -> int:
    """Microseconds since 1970."""
    moment = datetime.fromisoformat(text)
    return (moment.replace(tzinfo=moment.tzinfo or UTC) - datetime.fromtimestamp(0, UTC)) // timedelta(microseconds=1)


def _length(text: str) -> int:
    """Microseconds."""
    return duration(text) // timedelta(microseconds=1)


def _reads(read: Callable[[str], int], above: float) -> Callable[[Any], bool]:
    def reads(value: Any) -> bool:
        try:
            return isinstance(value, str) and read(value) > above
        except ValueError:
            return False

    return reads


def _are(fits: Callable[[Any], bool], least: int = 0) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and len(value) >= least and all(map(fits, value))


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and value != "" and "${" not in value  # Spark would put a setting in its place


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0


def _is_range(value: Any) -> bool:
    whole = isinstance(value, list | tuple) and all(_is_number(at) and isinstance(at, int) for at in value)
    return whole and len(value) == 2 and value[0] <= value[1]


def _is_plan(value: Any) -> bool:
    """Ranges of whole numbers, of one partition one after the other; in JSON the partitions are strings."""
    partitions = isinstance(value, dict) and all(isinstance(p, int | str) and str(p).isdecimal() for p in value)
    ranges = partitions and len(set(map(int, value))) == len(value) and all(map(_are(_is_range), value.values()))
    return ranges and all(a[1] <= b[0] for of_one in value.values() for a, b in pairwise(of_one))


_PARAMETERS: dict[str, tuple[Callable[[Any], bool], str]] = {
    **dict.fromkeys(("start", "end", "column", "table", "found_in"), (_is_name, "a name, without ${")),
    **dict.fromkeys(("key", "column_list", "found_key"), (_are(_is_name, 1), "a list of names, without ${")),
    **dict.fromkeys(("within", "shorter_than"), (_reads(_length, 0), "a duration: 30 days, 90 minutes, 500 ms")),
    **dict.fromkeys(("until", "known_at"), (_reads(_moment, -math.inf), "a moment: 2026-01-01T00:00:00+00:00")),
    **dict.fromkeys(("share", "at_most"), (lambda value: _is_number(value) and value <= 1, "a number from 0 to 1")),
    "which": (lambda value: value in list(WHICH), f"one of {', '.join(WHICH)}"),
    "runs": (lambda value: _is_number(value) and isinstance(value, int) and value > 0, "a whole number above 0"),
    "factor": (lambda value: _is_number(value) and value > 1, "a number above 1"),
    "earlier": (_are(_is_number), "a list of numbers, the newest last"),
    "planned": (_is_plan, "for each partition its ranges in order: {0: [[0, 10], [12, 20]]}"),
}
"""Of a parameter, by its name: whether a value does, and what would do."""
