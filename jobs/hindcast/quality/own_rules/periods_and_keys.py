"""Rules about periods, keys and system time, which judge each row, some beside the others of its key.

quarantine_gates.py decides what becomes of rows that fail.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from hindcast.quality.own_rules.base import ConditionRule, RowRule, parse_length, parse_micros, quote_name, quote_names


class _PeriodsRule(RowRule):
    """A rule about the periods of a key, one after the other."""

    row_set: ClassVar[Literal["near", "keys"]] = "keys"
    key: list[str]
    start: str = "validFrom"
    end: str = "validTo"

    def periods_query(self) -> str:
        """Return SQL for rows as `_row`, with `_start`, `_until`, and `_reached`, the latest end of earlier rows."""
        start, end = quote_name(self.start), quote_name(self.end)
        until = f"coalesce({end}, timestamp_micros(9223372036854775807))"
        before = f"PARTITION BY {quote_names(self.key)} ORDER BY {start}, {until} ROWS BETWEEN UNBOUNDED PRECEDING"
        reached = f"max(CASE WHEN {until} > {start} THEN {until} END) OVER ({before} AND 1 PRECEDING)"
        return f"SELECT struct(*) AS _row, {start} AS _start, {until} AS _until, {reached} AS _reached FROM {{batch}}"


class ExpectPeriodsToNotOverlap(_PeriodsRule):
    """No two periods of a key overlap; of two that do, the one that starts (or else ends) later fails.

    An empty period overlaps nothing.

        [0, 9) [2, 4) [5, ..)    ->    [2, 4) and [5, ..) fail: [0, 9) is still valid
    """

    row_set: ClassVar[Literal["near", "keys"]] = "near"

    def build_query(self) -> str:
        return f"SELECT _row.* FROM ({self.periods_query()}) WHERE _start < _until AND _reached > _start"


class ExpectPeriodsToNotBeEmpty(ConditionRule):
    """Every period has a start, and ends after it if it ends."""

    row_set = "change"
    start: str = "validFrom"
    end: str = "validTo"

    def failing_condition(self) -> str:
        start, end = quote_name(self.start), quote_name(self.end)
        return f"{start} IS NULL OR {end} <= {start}"


class ExpectPeriodsToHaveNoGaps(_PeriodsRule):
    """No period of a key, except the first, starts after the latest end of those before it.

    A gap of `shorter_than` (a duration) or longer is intended. Empty periods are ignored.

        shorter_than 5 ms    [0, 2) [6, 8) [13, ..)    ->    [6, 8) fails, 4 ms after [0, 2); [13, ..) does not
    """

    shorter_than: str | None = None

    def build_query(self) -> str:
        gap = "_reached < _start"
        if self.shorter_than is not None:
            gap += f" AND unix_micros(_reached) > unix_micros(_start) - {parse_length(self.shorter_than)}"
        return f"SELECT _row.* FROM ({self.periods_query()}) WHERE _start < _until AND {gap}"


class ExpectKeysToHaveAtMostOneOpenVersion(RowRule):
    """At most one version of a key has no end; if more have none, all of these fail."""

    row_set = "near"
    key: list[str]
    end: str = "validTo"

    def build_query(self) -> str:
        count = f"count(*) OVER (PARTITION BY {quote_names(self.key)})"
        opened = f"SELECT struct(*) AS _row, {count} AS _count FROM {{batch}} WHERE {quote_name(self.end)} IS NULL"
        return f"SELECT _row.* FROM ({opened}) WHERE _count > 1"


class ExpectSystemFromToNotRunBackwards(ConditionRule):
    """No row has a systemFrom after `known_at`, the run's known-at."""

    row_set = "plane"
    known_at: str

    def failing_condition(self) -> str:
        return f"systemFrom IS NULL OR systemFrom > timestamp_micros({parse_micros(self.known_at)})"


class ExpectTiesToBeOrdered(ConditionRule):
    """No new record has the key and timestamp of a record of another partition with other content.

    Of two such records the one in the larger partition wins, whichever was sent later. With `also_replaced` a record
    also fails if a later one of its run and partition replaces it at the same timestamp: nobody ever sees its content.
    bitemporal/ties.py finds both kinds.

        a @5: 8 at 0/3, 9 at 1/7    ->    both fail, if both are new
    """

    row_set = "ties"
    also_replaced: bool = False

    def failing_condition(self) -> str:
        return "_unordered OR _replaced" if self.also_replaced else "_unordered"


class ExpectForeignKeysToBeFound(RowRule):
    """Every foreign key, one `column` or a `column_list`, is in `table` at the moment its row starts.

    `found_in`: a view of that table's rows: `validFrom`, `validTo` and its key columns, `found_key`, in the order of
    ours. Where one of our columns is null there is no foreign key. With `whole_period` the key must exist from the
    start of the row to its end, `finish`, without a gap, like PERIOD foreign keys in SQL:2011; for an event, whose end
    is its start, at that moment.

        table: curry [0, 5)    ->    curry at 4 is found, curry at 5 fails; of the whole period [3, 5) is, [3, 6) fails
    """

    row_set = "change"
    column: str | None = None
    column_list: list[str] | None = None
    table: str
    found_in: str
    found_key: list[str]
    start: str = "validFrom"
    finish: str = "validTo"
    whole_period: bool = False

    def build_query(self) -> str:
        columns = self.column_list or ([] if self.column is None else [self.column])
        if not columns or (self.column_list and self.column):
            raise ValueError("the foreign key is a column or a column_list; write one of them")
        if len(columns) != len(self.found_key):
            mismatch = (
                f"the foreign key is {', '.join(columns)}, the key of {self.table} is {', '.join(self.found_key)}"
            )
            raise ValueError(f"{mismatch}; write a column for each, in their order")
        ours = [f"_t.{quote_name(name)}" for name in columns]
        theirs = [f"_f.{quote_name(name)}" for name in self.found_key]
        given = " AND ".join(f"{column} IS NOT NULL" for column in ours)
        same = " AND ".join(f"{their} = {our}" for their, our in zip(theirs, ours, strict=True))
        start = f"_t.{quote_name(self.start)}"
        valid = f"_f.validFrom <= {start} AND (_f.validTo IS NULL OR _f.validTo > {start})"
        view = quote_name(self.found_in)
        if self.whole_period:
            valid += f" AND (_f.validTo IS NULL OR _f.validTo >= _t.{quote_name(self.finish)})"  # null: for ever
            view = f"({self._spans_query(columns)})"
        match = f"SELECT 1 FROM {view} AS _f WHERE {same} AND {valid}"
        return f"SELECT _t.* FROM {{batch}} AS _t WHERE {given} AND NOT EXISTS ({match})"

    def _spans_query(self, columns: list[str]) -> str:
        """Return SQL for the gapless periods in which `table` has the foreign keys of the batch."""
        keys, end = quote_names(self.found_key), "coalesce(validTo, timestamp_micros(9223372036854775807))"
        alike = (
            f"_a.{quote_name(our)} = _r.{quote_name(their)}" for our, their in zip(columns, self.found_key, strict=True)
        )
        looked_up = (
            f"SELECT _r.* FROM {quote_name(self.found_in)} AS _r LEFT SEMI JOIN {{batch}} AS _a ON "
            f"{' AND '.join(alike)}"
        )
        by = f"PARTITION BY {keys} ORDER BY validFrom, {end}"
        before = f"max({end}) OVER ({by} ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)"
        begun = f"SELECT {keys}, validFrom, validTo, {end} AS _end, {before} AS _before FROM ({looked_up})"
        place = f"sum(CASE WHEN _before >= validFrom THEN 0 ELSE 1 END) OVER ({by.replace(end, '_end')})"
        numbered = f"SELECT *, {place} AS _span FROM ({begun})"
        last = "CASE WHEN bool_or(validTo IS NULL) THEN NULL ELSE max(validTo) END"
        ends = f"min(validFrom) AS validFrom, {last} AS validTo"
        return f"SELECT {keys}, {ends} FROM ({numbered}) GROUP BY {keys}, _span"
