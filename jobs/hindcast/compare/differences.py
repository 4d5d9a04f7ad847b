"""What the two sides do not share, and what is known of each difference: tables of DuckDB.

| kind | |
| --- | --- |
| missing | in the topic, not replayed |
| extra | replayed, not in the topic |
| different | the same key and timestamp, another value |
| time | the same key and value, another timestamp |
| order | equal, but replayed before a record of its key that it follows in the topic |
"""

from __future__ import annotations

from collections.abc import Sequence

import duckdb

from hindcast.compare.outputs import PARTITION, Form
from hindcast.compare.rules import Rule, upstream
from hindcast.contracts import Contract
from hindcast.delta import scan, tables

KINDS = ("missing", "extra", "different", "time", "order")


def pair(engine: duckdb.DuckDBPyConnection) -> None:
    """Makes `pairs` of the tables `live` and `ours`: the places of two records and the kind of what they are.

    What has the same columns is paired the first with the first, and so on; each record once at most.
    """
    engine.execute("CREATE TABLE pairs (live BIGINT, ours BIGINT, kind VARCHAR)")
    for kind, columns in _PAIRED.items():
        side = (
            f"(SELECT *, row_number() OVER (PARTITION BY {', '.join(columns)} ORDER BY place) AS n "  # noqa: S608  # ours
            "FROM {0} ANTI JOIN pairs ON pairs.{0} = {0}.place)"
        )
        same = " AND ".join(f"l.{column} IS NOT DISTINCT FROM o.{column}" for column in (*columns, "n"))
        engine.execute(
            f"INSERT INTO pairs SELECT l.place, o.place, '{kind}' FROM {side.format('live')} l "  # noqa: S608
            f"JOIN {side.format('ours')} o ON {same}"
        )


def find(engine: duckdb.DuckDBPyConnection, warehouse: str, contract: Contract, name: str, form: Form) -> None:
    """Makes `differences` of the pairs and of what has none: both sides of each, and what the rules ask about it."""
    engine.execute(_FOUND)
    _look_up(engine, warehouse, contract, name)
    unmet = " OR ".join(f'v."{c}" IS NULL AND our_v."{c}" IS NOT NULL' for c in form.value) or "false"
    our_unmet = " OR ".join(f'our_v."{c}" IS NULL AND v."{c}" IS NOT NULL' for c in form.value) or "false"
    near = " AND ".join(_near(f'"{column}"', kind) for column, kind in form.value.items()) or "false"
    both = "v IS NOT NULL AND our_v IS NOT NULL"
    engine.execute(
        f"CREATE TABLE differences AS SELECT found.*, v IS NULL AS dead, our_v IS NULL AS our_dead, "  # noqa: S608
        f"{both} AND ({unmet}) AS unmet, {both} AND ({our_unmet}) AS our_unmet, "
        f"{both} AND coalesce({near}, false) AS near, lag, coalesce(expired, false) AS expired "
        "FROM found LEFT JOIN causes USING (id)"
    )


def judge(engine: duckdb.DuckDBPyConnection, told: Sequence[Rule]) -> None:
    """Makes `judged`: the differences with the number of the first rule that holds."""
    cases = " ".join(f"WHEN {rule.when} THEN {number}" for number, rule in enumerate(told))
    engine.execute(f"CREATE TABLE judged AS SELECT *, CASE {cases} END AS rule FROM differences")  # noqa: S608


_PAIRED = {
    "equal": ("k", "w0", "w1", "t", "v"),
    "different": ("k", "w0", "w1", "t"),
    "time": ("k", "w0", "w1", "v"),
}
_NUMBERS = ("DECIMAL", "DOUBLE", "FLOAT", "TINYINT", "SMALLINT", "INTEGER", "BIGINT")
_FOUND = f"""
CREATE TABLE found AS
WITH
matched AS (SELECT live, ours, k, w0, w1 FROM pairs JOIN live ON live = place WHERE kind = 'equal'),
moved AS (
    SELECT live, ours, ours < max(ours) OVER earlier AS moved FROM matched
    WINDOW earlier AS (PARTITION BY k, w0, w1, live >> {PARTITION}, ours >> {PARTITION} ORDER BY live
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)),
unlike AS (
    SELECT kind, live, ours FROM pairs WHERE kind <> 'equal'
    UNION ALL SELECT 'order', live, ours FROM moved WHERE moved
    UNION ALL SELECT 'missing', place, NULL FROM live ANTI JOIN pairs ON place = pairs.live
    UNION ALL SELECT 'extra', NULL, place FROM ours ANTI JOIN pairs ON place = pairs.ours),
ends AS (SELECT live >> {PARTITION} AS p, min(live) AS first, max(live) AS last FROM matched GROUP BY p),
our_ends AS (SELECT ours >> {PARTITION} AS p, min(ours) AS first, max(ours) AS last FROM matched GROUP BY p),
sides AS MATERIALIZED (
    SELECT row_number() OVER () AS id, kind, live, ours, coalesce(l.k, o.k) AS k, coalesce(l.w0, o.w0) AS w0,
        coalesce(l.w1, o.w1) AS w1, l.t, o.t AS our_t, l.v, o.v AS our_v, cause, cause_partition, cause_offset,
        coalesce(live < ends.first, ours < our_ends.first, false) AS head,
        coalesce(live > ends.last, ours > our_ends.last, false) AS tail
    FROM unlike LEFT JOIN live l ON l.place = live LEFT JOIN ours o ON o.place = ours
    LEFT JOIN ends ON ends.p = live >> {PARTITION} LEFT JOIN our_ends ON our_ends.p = ours >> {PARTITION}),
latest AS (SELECT k, w0, w1, max(ours) AS latest FROM matched GROUP BY ALL),
again AS (
    SELECT id FROM sides SEMI JOIN ours ON sides.kind = 'missing' AND ours.k IS NOT DISTINCT FROM sides.k
        AND ours.w0 IS NOT DISTINCT FROM sides.w0 AND ours.w1 IS NOT DISTINCT FROM sides.w1
        AND ours.t = sides.t AND ours.v IS NOT DISTINCT FROM sides.v),
keys AS (
    SELECT k, w0, w1, arg_min(id, (coalesce(t, our_t), coalesce(live, ours))) AS first,
        min(kind) FILTER (WHERE head) = max(kind) FILTER (WHERE head) AS head_alone,
        min(kind) FILTER (WHERE tail) = max(kind) FILTER (WHERE tail) AS tail_alone
    FROM sides GROUP BY ALL)
SELECT sides.* REPLACE (head AND head_alone AS head, tail AND tail_alone AS tail), id <> first AS follows,
    coalesce(latest > ours, false) AS later, id IN (FROM again) AS repeated
FROM sides
JOIN keys ON keys.k IS NOT DISTINCT FROM sides.k AND keys.w0 IS NOT DISTINCT FROM sides.w0
    AND keys.w1 IS NOT DISTINCT FROM sides.w1
LEFT JOIN latest ON latest.k IS NOT DISTINCT FROM sides.k AND latest.w0 IS NOT DISTINCT FROM sides.w0
    AND latest.w1 IS NOT DISTINCT FROM sides.w1
"""  # noqa: S608  # our own columns


def _look_up(engine: duckdb.DuckDBPyConnection, warehouse: str, contract: Contract, name: str) -> None:
    """Makes `causes` of differences: what the logs say of the records that they were emitted for.

    Of a missing one nobody knows its record: it is taken for one of those with its timestamp.
    """
    engine.execute("CREATE TABLE traced (id BIGINT, lag BIGINT, expired BOOLEAN)")
    engine.execute("CREATE TABLE dated (t BIGINT, lag BIGINT, expired BOOLEAN)")
    for topic in sorted(upstream(contract, name)):
        log = tables.opened(tables.log(warehouse, contract.pipeline, topic))
        if log is None:
            continue
        lag = "epoch_ms(streamTime) - epoch_ms(rows.timestamp)"
        with engine.cursor() as cursor:
            scan.register(cursor, log)
            cursor.execute(
                f"INSERT INTO traced SELECT id, {lag}, NULL FROM found JOIN rows "  # noqa: S608  # our own columns
                "ON cause_partition = rows.partition AND cause_offset = rows.offset WHERE cause = ?",
                [topic],
            )
            cursor.execute(
                f"INSERT INTO dated SELECT epoch_ms(rows.timestamp), {lag}, fate = 'expired' FROM rows "  # noqa: S608
                "WHERE epoch_ms(rows.timestamp) IN (SELECT t FROM found WHERE kind = 'missing')"
            )
    engine.execute(
        "CREATE TABLE causes AS SELECT id, max(lag) AS lag, bool_or(expired) AS expired FROM "
        "(FROM traced UNION ALL SELECT id, lag, expired FROM found JOIN dated USING (t) WHERE kind = 'missing') "
        "GROUP BY id"
    )


def _near(column: str, kind: str) -> str:
    if not kind.startswith(_NUMBERS):
        return f"v.{column} IS NOT DISTINCT FROM our_v.{column}"
    live, ours = (f"{side}.{column}::DOUBLE" for side in ("v", "our_v"))
    return f"(abs({live} - {ours}) <= 1e-9 * abs({ours}) OR {live} IS NOT DISTINCT FROM {ours})"
