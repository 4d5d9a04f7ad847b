"""Rules that judge row by row: periods, keys, system time."""

from __future__ import annotations

from typing import ClassVar, Literal

from hindcast.quality.rules.base import ConditionRule, RowRule, length, listed, moment, quoted


class _PeriodsRule(RowRule):
    """Of the periods of a key, one after the other."""

    about: ClassVar[Literal["near", "keys"]] = "keys"
    key: list[str]
    start: str = "validFrom"
    end: str = "validTo"

    def in_time(self) -> str:
        """A query of every row as `_row`, with its start, its end, and how far the rows of its key before it reach."""
        start, end = quoted(self.start), quoted(self.end)
        until = f"coalesce({end}, timestamp_micros(9223372036854775807))"
        before = f"PARTITION BY {listed(self.key)} ORDER BY {start}, {until} ROWS BETWEEN UNBOUNDED PRECEDING"
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


class ExpectPeriodsToNotBeEmpty(ConditionRule):
    """Every period has a start, and ends after it if it ends."""

    about = "change"
    start: str = "validFrom"
    end: str = "validTo"

    def condition(self) -> str:
        start, end = quoted(self.start), quoted(self.end)
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
            gap += f" AND unix_micros(_reached) > unix_micros(_start) - {length(self.shorter_than)}"
        return f"SELECT _row.* FROM ({self.in_time()}) WHERE _start < _until AND {gap}"


class ExpectKeysToHaveAtMostOneOpenVersion(RowRule):
    """At most one version of a key has no end; where more have none, all of these fail."""

    about = "near"
    key: list[str]
    end: str = "validTo"

    def sql(self) -> str:
        count = f"count(*) OVER (PARTITION BY {listed(self.key)})"
        opened = f"SELECT struct(*) AS _row, {count} AS _count FROM {{batch}} WHERE {quoted(self.end)} IS NULL"
        return f"SELECT _row.* FROM ({opened}) WHERE _count > 1"


class ExpectSystemFromToNotRunBackwards(ConditionRule):
    """No row is believed from later on than `known_at`, the run's known-at."""

    about = "plane"
    known_at: str

    def condition(self) -> str:
        return f"systemFrom IS NULL OR systemFrom > timestamp_micros({moment(self.known_at)})"


class ExpectTiesToBeOrdered(ConditionRule):
    """No record that came has the key and the timestamp of one of another partition that says something else.

    Of such two the one of the larger partition holds, whichever was sent later. With `also_replaced` a record fails too
    that a later one of its run and partition replaces at its own timestamp: nobody ever sees what it says.

        a @5: 8 at 0/3, 9 at 1/7    ->    both fail, if both have come
    """

    about = "ties"
    also_replaced: bool = False

    def condition(self) -> str:
        return "_unordered OR _replaced" if self.also_replaced else "_unordered"


class ExpectForeignKeysToBeFound(RowRule):
    """Every foreign key, one `column` or a `column_list`, is in `table` at the moment its row starts.

    `found_in`: a view with that table's rows: `validFrom`, `validTo` and its key columns, `found_key`, in the order of
    ours. Where one of our columns is null there is no foreign key. With `whole_period` the key has to be there from the
    start of the row to its end, `finish`, without a gap, as the PERIOD foreign keys of SQL:2011 want it; of an event,
    whose end is its start, at that moment.

        table: curry [0, 5)    ->    curry at 4 is found, curry at 5 fails; of the whole period [3, 5) is, [3, 6) fails
    """

    about = "change"
    column: str | None = None
    column_list: list[str] | None = None
    table: str
    found_in: str
    found_key: list[str]
    start: str = "validFrom"
    finish: str = "validTo"
    whole_period: bool = False

    def sql(self) -> str:
        columns = self.column_list or ([] if self.column is None else [self.column])
        if not columns or (self.column_list and self.column):
            raise ValueError("the foreign key is a column or a column_list; write one of them")
        if len(columns) != len(self.found_key):
            told = f"the foreign key is {', '.join(columns)}, the key of {self.table} is {', '.join(self.found_key)}"
            raise ValueError(f"{told}; write a column for each, in their order")
        ours, theirs = [f"_t.{quoted(name)}" for name in columns], [f"_f.{quoted(name)}" for name in self.found_key]
        given = " AND ".join(f"{column} IS NOT NULL" for column in ours)
        same = " AND ".join(f"{their} = {our}" for their, our in zip(theirs, ours, strict=True))
        start = f"_t.{quoted(self.start)}"
        valid = f"_f.validFrom <= {start} AND (_f.validTo IS NULL OR _f.validTo > {start})"
        view = quoted(self.found_in)
        if self.whole_period:
            valid += f" AND (_f.validTo IS NULL OR _f.validTo >= _t.{quoted(self.finish)})"  # null: for ever
            view = f"({self._spans(columns)})"
        found = f"SELECT 1 FROM {view} AS _f WHERE {same} AND {valid}"
        return f"SELECT _t.* FROM {{batch}} AS _t WHERE {given} AND NOT EXISTS ({found})"

    def _spans(self, columns: list[str]) -> str:
        """Return a query of the periods without a gap in which `table` has each of the keys that are asked for."""
        keys, end = listed(self.found_key), "coalesce(validTo, timestamp_micros(9223372036854775807))"
        alike = (f"_a.{quoted(our)} = _r.{quoted(their)}" for our, their in zip(columns, self.found_key, strict=True))
        asked = (
            f"SELECT _r.* FROM {quoted(self.found_in)} AS _r LEFT SEMI JOIN {{batch}} AS _a ON {' AND '.join(alike)}"
        )
        by = f"PARTITION BY {keys} ORDER BY validFrom, {end}"
        before = f"max({end}) OVER ({by} ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)"
        begun = f"SELECT {keys}, validFrom, validTo, {end} AS _end, {before} AS _before FROM ({asked})"
        place = f"sum(CASE WHEN _before >= validFrom THEN 0 ELSE 1 END) OVER ({by.replace(end, '_end')})"
        numbered = f"SELECT *, {place} AS _span FROM ({begun})"
        last = "CASE WHEN bool_or(validTo IS NULL) THEN NULL ELSE max(validTo) END"
        ends = f"min(validFrom) AS validFrom, {last} AS validTo"
        return f"SELECT {keys}, {ends} FROM ({numbered}) GROUP BY {keys}, _span"
