"""Find what two sides do not share, and what is known of each difference: tables of DuckDB.

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

from hindcast.contract import Contract
from hindcast.ops.compare.outputs import PARTITION_SHIFT, OutputFormat
from hindcast.ops.compare.rules import DifferenceRule, find_source_topics
from hindcast.store import duckdb_reader, tables

KINDS = ("missing", "extra", "different", "time", "order")


def pair_records(engine: duckdb.DuckDBPyConnection) -> None:
    """Create `pairs` from the tables `live` and `ours`: the places of two records, and the kind of the pair.

    Records with equal columns are paired in order, the first with the first; each record at most once.
    """
    engine.execute("CREATE TABLE pairs (live BIGINT, ours BIGINT, kind VARCHAR)")
    for kind, columns in _PAIRING_COLUMNS.items():
        side = (
            f"(SELECT *, row_number() OVER (PARTITION BY {', '.join(columns)} ORDER BY place) AS n "  # noqa: S608  # ours
            "FROM {0} ANTI JOIN pairs ON pairs.{0} = {0}.place)"
        )
        same = " AND ".join(f"l.{column} IS NOT DISTINCT FROM o.{column}" for column in (*columns, "n"))
        engine.execute(
            f"INSERT INTO pairs SELECT l.place, o.place, '{kind}' FROM {side.format('live')} l "  # noqa: S608
            f"JOIN {side.format('ours')} o ON {same}"
        )


def find_differences(
    engine: duckdb.DuckDBPyConnection, warehouse: str, contract: Contract, name: str, form: OutputFormat
) -> None:
    """Create `differences` from pairs and unpaired records: both sides of each, and the columns that rules need."""
    engine.execute(_UNPAIRED_SQL)
    _find_causes(engine, warehouse, contract, name)
    unmet = " OR ".join(f'v."{c}" IS NULL AND our_v."{c}" IS NOT NULL' for c in form.value) or "false"
    our_unmet = " OR ".join(f'our_v."{c}" IS NULL AND v."{c}" IS NOT NULL' for c in form.value) or "false"
    near = " AND ".join(_nearness_condition(f'"{column}"', kind) for column, kind in form.value.items()) or "false"
    both = "v IS NOT NULL AND our_v IS NOT NULL"
    engine.execute(
        f"CREATE TABLE differences AS SELECT found.*, v IS NULL AS dead, our_v IS NULL AS our_dead, "  # noqa: S608
        f"{both} AND ({unmet}) AS unmet, {both} AND ({our_unmet}) AS our_unmet, "
        f"{both} AND coalesce({near}, false) AS near, lag, coalesce(expired, false) AS expired "
        "FROM found LEFT JOIN causes USING (id)"
    )


def assign_rules(engine: duckdb.DuckDBPyConnection, ordered_rules: Sequence[DifferenceRule]) -> None:
    """Create `judged`: the differences with the number of the first rule that holds."""
    cases = " ".join(f"WHEN {rule.condition} THEN {number}" for number, rule in enumerate(ordered_rules))
    engine.execute(f"CREATE TABLE judged AS SELECT *, CASE {cases} END AS rule FROM differences")  # noqa: S608


_PAIRING_COLUMNS = {
    "equal": ("k", "w0", "w1", "t", "v"),
    "different": ("k", "w0", "w1", "t"),
    "time": ("k", "w0", "w1", "v"),
}
_NUMBERS = ("DECIMAL", "DOUBLE", "FLOAT", "TINYINT", "SMALLINT", "INTEGER", "BIGINT")
_UNPAIRED_SQL = f"""
CREATE TABLE found AS
WITH
matched AS (SELECT live, ours, k, w0, w1 FROM pairs JOIN live ON live = place WHERE kind = 'equal'),
moved AS (
    SELECT live, ours, ours < max(ours) OVER earlier AS moved FROM matched
    WINDOW earlier AS (PARTITION BY k, w0, w1, live >> {PARTITION_SHIFT}, ours >> {PARTITION_SHIFT} ORDER BY live
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)),
unlike AS (
    SELECT kind, live, ours FROM pairs WHERE kind <> 'equal'
    UNION ALL SELECT 'order', live, ours FROM moved WHERE moved
    UNION ALL SELECT 'missing', place, NULL FROM live ANTI JOIN pairs ON place = pairs.live
    UNION ALL SELECT 'extra', NULL, place FROM ours ANTI JOIN pairs ON place = pairs.ours),
ends AS (SELECT live >> {PARTITION_SHIFT} AS p, min(live) AS first, max(live) AS last FROM matched GROUP BY p),
our_ends AS (SELECT ours >> {PARTITION_SHIFT} AS p, min(ours) AS first, max(ours) AS last FROM matched GROUP BY p),
sides AS MATERIALIZED (
    SELECT row_number() OVER () AS id, kind, live, ours, coalesce(l.k, o.k) AS k, coalesce(l.w0, o.w0) AS w0,
        coalesce(l.w1, o.w1) AS w1, l.t, o.t AS our_t, l.v, o.v AS our_v, cause, cause_partition, cause_offset,
        coalesce(live < ends.first, ours < our_ends.first, false) AS head,
        coalesce(live > ends.last, ours > our_ends.last, false) AS tail
    FROM unlike LEFT JOIN live l ON l.place = live LEFT JOIN ours o ON o.place = ours
    LEFT JOIN ends ON ends.p = live >> {PARTITION_SHIFT} LEFT JOIN our_ends ON our_ends.p = ours >> {PARTITION_SHIFT}),
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


def _find_causes(engine: duckdb.DuckDBPyConnection, warehouse: str, contract: Contract, name: str) -> None:
    """Create `causes` of differences: what the logs have of the records that they were emitted for.

    The record of a missing one is unknown: it is taken for one with the same timestamp.
    """
    engine.execute("CREATE TABLE traced (id BIGINT, lag BIGINT, expired BOOLEAN)")
    engine.execute("CREATE TABLE dated (t BIGINT, lag BIGINT, expired BOOLEAN)")
    for topic in sorted(find_source_topics(contract, name)):
        log = tables.open_table(tables.log_table(warehouse, contract.pipeline, topic))
        if log is None:
            continue
        lag = "epoch_ms(streamTime) - epoch_ms(rows.timestamp)"
        with engine.cursor() as cursor:
            duckdb_reader.register_rows(cursor, log)
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


def _nearness_condition(column: str, kind: str) -> str:
    if not kind.startswith(_NUMBERS):
        return f"v.{column} IS NOT DISTINCT FROM our_v.{column}"
    live, ours = (f"{side}.{column}::DOUBLE" for side in ("v", "our_v"))
    return f"(abs({live} - {ours}) <= 1e-9 * abs({ours}) OR {live} IS NOT DISTINCT FROM {ours})"
