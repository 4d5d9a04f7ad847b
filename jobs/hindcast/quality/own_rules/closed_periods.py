"""The rule that keeps what was answered about closed periods."""

from __future__ import annotations

from hindcast.quality.own_rules.base import RowRule, parse_micros, quote_name

_END = 9223372036854775807
"""The microsecond at which a row without an end ends."""


class ExpectClosedPeriodsToStay(RowRule):
    """No answer about a closed period changes (plan/closes.py): versions that are valid in it, events that are dated in
    it, windows that touch it.

    All rows of a key that the run would open or close in such a period fail if the answers there differ before and
    after. A row that is cut outside of it, or in it into equal ones, changes no answer.

        closed: [0, 10)    [0, ..): 8    ->    [0, 12): 8 and [12, ..): 9 pass; [0, 5): 8 and [5, ..): 9 fail

    `closed`: the periods, each `[from, to]`; `closing`: a view of the rows that the run would close, with the columns
    `closing_by`, which tell which they are; `content`: the columns that an answer shows, of which `maps` hold maps;
    `judged`: a view of the keys that are judged; if empty, all are.
    """

    row_set = "plane"
    kind: str
    key: list[str]
    start: str = "validFrom"
    finish: str = "validTo"
    known_at: str
    closed: list[list[str]]
    closing: str
    closing_by: list[str]
    content: list[str]
    maps: list[str]
    judged: str

    def build_query(self) -> str:
        if not self.closed:
            return "SELECT * FROM {batch} WHERE false"
        cut = f"SELECT _key, _content, _opened, _n, {self._cut()} FROM ({self._rows()})"
        pieces = f"{cut} JOIN {self._periods()} ON {_TOUCHES}"
        length = "_until - _since"
        sizes = (
            f"SELECT _key, _n, sum(if(_opened, {length}, 0)) AS _after, sum(if(_opened, 0, {length})) AS _before "
            f"FROM ({pieces}) GROUP BY _key, _n"
        )
        common = (
            "SELECT a._key, a._n, sum(least(a._until, b._until) - greatest(a._since, b._since)) AS _same "
            f"FROM ({pieces}) AS a JOIN ({pieces}) AS b ON a._opened AND NOT b._opened AND a._key <=> b._key "
            "AND a._n = b._n AND a._content <=> b._content AND a._since < b._until AND b._since < a._until "
            "GROUP BY a._key, a._n"
        )
        changed = (
            f"SELECT s._key, s._n FROM ({sizes}) AS s LEFT JOIN ({common}) AS c ON s._key <=> c._key AND s._n = c._n "
            "WHERE NOT (_after = _before AND _after = coalesce(_same, 0))"
        )
        touched = f"SELECT _key, _from, _to FROM ({changed}) AS d JOIN {self._periods()} ON d._n = _closed._n"
        return (
            f"SELECT _row.* FROM ({self._rows()}) AS r WHERE EXISTS (SELECT 1 FROM ({touched}) AS t "
            f"WHERE t._key <=> r._key AND {_TOUCHES})"
        )

    def _rows(self) -> str:
        """Return SQL for the rows that the run would open or close, with what they say and when, in microseconds."""
        start, finish = f"_r.{quote_name(self.start)}", f"_r.{quote_name(self.finish)}"
        key = ", ".join(f"_r.{quote_name(name)}" for name in self.key)
        shown = [f"to_json(_r.{quote_name(it)})" if it in self.maps else f"_r.{quote_name(it)}" for it in self.content]
        if self.kind == "versions":
            until = f"coalesce(unix_micros({finish}), {_END})"
        else:
            shown += [start, finish]  # it stands for itself: two of them are two, wherever they are
            until = f"unix_micros({start}) + 1" if self.start == self.finish else f"unix_micros({finish})"
        content = ", ".join(shown) or "0"
        same = " AND ".join(f"_c.{quote_name(name)} <=> _r.{quote_name(name)}" for name in self.closing_by)
        opened = f"systemFrom = timestamp_micros({parse_micros(self.known_at)})"
        columns = f"struct(_r.*) AS _row, struct({key}) AS _key, struct({content}) AS _content, {opened} AS _opened"
        closing = f"EXISTS (SELECT 1 FROM {quote_name(self.closing)} AS _c WHERE {same})"
        alike = " AND ".join(f"_j.{quote_name(name)} <=> _r.{quote_name(name)}" for name in self.key) or "true"
        judged = f"EXISTS (SELECT 1 FROM {quote_name(self.judged)} AS _j WHERE {alike})" if self.judged else "true"
        return (
            f"SELECT {columns}, unix_micros({start}) AS _begin, {until} AS _end "
            f"FROM {{batch}} AS _r WHERE ({opened} OR {closing}) AND {judged}"
        )

    def _cut(self) -> str:
        """Return SQL for the part of a row in a period; an event or a window counts once."""
        if self.kind == "versions":
            return "greatest(_begin, _from) AS _since, least(_end, _to) AS _until"
        return "0 AS _since, 1 AS _until"

    def _periods(self) -> str:
        rows = (f"({n}, {parse_micros(since)}, {parse_micros(until)})" for n, (since, until) in enumerate(self.closed))
        return f"(VALUES {', '.join(rows)}) AS _closed (_n, _from, _to)"


_TOUCHES = "_begin < _to AND _end > _from"
