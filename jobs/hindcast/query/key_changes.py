"""How the answers about one key differ between two moments of knowledge, from its history (key_history.py)."""

from __future__ import annotations

from hindcast.common.errors import UnknownError
from hindcast.plan import horizon
from hindcast.query import paired_rows
from hindcast.query.changes import LINES, ChangeCounts, ChangeQuestion, Changes, ComparedColumns, list_sides
from hindcast.query.key_history import KeyHistory
from hindcast.store import duckdb_reader, tables


def find_key_changes(history: KeyHistory, question: ChangeQuestion) -> Changes:
    """Return the changes of a key, in the order of time; UnknownError if its table is gone."""
    table = history.table
    delta_table = tables.open_table(table)
    if delta_table is None:
        raise UnknownError("the table has not been published yet", where=table.path, fix="run the pipeline first")
    trimmed = horizon.read_horizon(table, delta_table)
    since = trimmed.moment if trimmed else None
    form = ComparedColumns(table, delta_table, question, since, None)
    with duckdb_reader.open_arrow_engine() as engine:
        engine.register("rows", history.rows)
        for side, condition in list_sides(question).items():
            rows = f"SELECT * FROM rows WHERE {condition} AND {form.kept_condition}"  # noqa: S608  # literals, quoted names
            engine.execute(f"CREATE TEMP TABLE {side} AS SELECT {form.columns} FROM ({rows})")  # noqa: S608
        paired_rows.pair_rows(engine, table.kind)
        counted = "SELECT count(*), count(DISTINCT h), count(*) FILTER (corrected) FROM pairs"
        counts = ChangeCounts(*engine.sql(counted).fetchall()[0])
        most = "" if question.most is None else f"LIMIT {question.most:d}"
        lines = LINES.format(pairs="FROM pairs")
        found = engine.sql(f"SELECT {form.line_columns} FROM ({lines}) ORDER BY p0 {most}").to_arrow_table()  # noqa: S608
    return Changes(table, found, counts)
