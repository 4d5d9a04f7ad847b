"""Pairs of the rows that a key had earlier and has later, for changes.py: in DuckDB, by references to the rows.

    old    [0, ..)  8             new    [0, 4)  8    [4, ..)  10
    pairs  [0, 4)   8 and 8       [4, ..)  8 and 10

Most rows begin when one of the other side begins: a hash join pairs them up to the earlier end. What is left of the
longer one is a row of its own, of which the same holds. Only what still has no partner is sorted by its periods. The
rows of a side do not overlap, so a part that was paired concerns no other row.
"""

from __future__ import annotations

from duckdb import DuckDBPyConnection

_ROUNDS = 2
"""How often rows are paired by their beginnings: twice where a version was split."""


def pair_rows(engine: DuckDBPyConnection, kind: str, size: str = "0") -> None:
    """Create `pairs`, a table or a view, from the tables `old` and `new` (`changes.ComparedColumns.columns`).

    `kind`: of the table whose rows they are. A pair has the rowids `o` and `n` (null where there was, or is, no row),
    the period, `h`, the hash of the key, `corrected`, and `size`, an expression over `a` (earlier) and `b` (later).
    Pairs of equal values are left out.
    """
    if kind == "versions":
        _pair_versions(engine, size)
    else:  # each event or window has one row on a side
        engine.execute(f"CREATE TEMP TABLE pairs AS {_KEPT} FROM ({_MET_EVENTS.format(size=size)}) WHERE differs")


def _pair_versions(engine: DuckDBPyConnection, size: str) -> None:
    for side in ("old", "new"):
        engine.execute(_ALL.format(side=side))
    for number in range(_ROUNDS):
        engine.execute(f"CREATE TEMP TABLE met_{number} AS {_MET.format(size=size)}")
        for side, other, own_ref, other_ref in (("old", "new", "o", "n"), ("new", "old", "n", "o")):
            left = _LEFT.format(number=number, side=side, other=other, own_ref=own_ref, other_ref=other_ref)
            engine.execute(f"CREATE TEMP TABLE next_left AS {left}")
            engine.execute(f"DROP {'VIEW' if number == 0 else 'TABLE'} {side}_left")
            engine.execute(f"ALTER TABLE next_left RENAME TO {side}_left")
    engine.execute(f"CREATE TEMP TABLE met_{_ROUNDS} AS {_MET_OF_REST.format(size=size)}")
    parts = (f"{_KEPT} FROM met_{number} WHERE differs" for number in range(_ROUNDS + 1))
    engine.execute(f"CREATE TEMP VIEW pairs AS {' UNION ALL '.join(parts)}")


_KEPT = "SELECT o, n, p0, CASE WHEN p1 < 'infinity' THEN p1 END AS p1, h, corrected, size"

_ALL = """
    CREATE TEMP VIEW {side}_left AS
    SELECT rowid AS ref, h, k, v, p0, coalesce(p1, 'infinity') AS p1, p1 IS NOT NULL AS ended FROM {side}
    WHERE p0 < coalesce(p1, 'infinity')
"""

_MET = """
    SELECT a.ref AS o, b.ref AS n, a.p0 AS p0, least(a.p1, b.p1) AS p1, a.p1 AS old_end, b.p1 AS new_end, a.h AS h,
           a.ended AS corrected, {size} AS size,
           a.ref IS NOT NULL AND b.ref IS NOT NULL AND a.v IS DISTINCT FROM b.v AS differs
    FROM old_left AS a FULL JOIN new_left AS b ON a.k = b.k AND a.p0 = b.p0
"""
"""The rows that begin together, and those without a partner, which are no pairs yet."""

_LEFT = """
    WITH apart AS (
        SELECT {own_ref} AS apart_ref, {other}_end AS since FROM met_{number}
        WHERE {own_ref} IS NOT NULL AND ({other_ref} IS NULL OR {other}_end < {side}_end)
    )
    SELECT ref, h, k, v, coalesce(since, p0) AS p0, p1, ended FROM {side}_left JOIN apart ON ref = apart_ref
"""
"""What no row of the other side has met, and of those that outlast it what comes after."""

_MET_OF_REST = """
    WITH cuts AS (
        SELECT k, p0 AS cut FROM old_left UNION SELECT k, p1 FROM old_left UNION
        SELECT k, p0 FROM new_left UNION SELECT k, p1 FROM new_left
    ), parts AS (
        SELECT k, cut AS start, lead(cut) OVER (PARTITION BY k ORDER BY cut) AS stop FROM cuts
    ), with_old AS (
        SELECT parts.*, CASE WHEN start < a.p1 THEN a.ref END AS o
        FROM parts ASOF LEFT JOIN old_left AS a ON parts.k = a.k AND start >= a.p0
    ), met AS (
        SELECT o, CASE WHEN start < b.p1 THEN b.ref END AS n, start AS p0, stop AS p1
        FROM with_old ASOF LEFT JOIN new_left AS b ON with_old.k = b.k AND start >= b.p0 WHERE stop IS NOT NULL
    )
    SELECT o, n, met.p0, met.p1, coalesce(a.h, b.h) AS h, coalesce(a.ended, false) AS corrected,
           o IS NULL OR n IS NULL OR a.v IS DISTINCT FROM b.v AS differs, {size} AS size
    FROM met LEFT JOIN old_left AS a ON a.ref = o LEFT JOIN new_left AS b ON b.ref = n
    WHERE o IS NOT NULL OR n IS NOT NULL
"""
"""Of each key the periods between two starts or ends of rows, with the row of each side that is true then."""

_MET_EVENTS = """
    SELECT a.rowid AS o, b.rowid AS n, coalesce(b.p0, a.p0) AS p0, coalesce(b.p1, a.p1) AS p1, coalesce(a.h, b.h) AS h,
           a.h IS NOT NULL AS corrected, {size} AS size,
           a.h IS NULL OR b.h IS NULL OR a.v IS DISTINCT FROM b.v AS differs
    FROM old AS a FULL JOIN new AS b ON a.k = b.k AND a.i = b.i AND a.p0 = b.p0
"""
