"""Table functions of Spark SQL, one set per pipeline: the questions of `bitemporal.predicates`, asked in SQL.

    SELECT * FROM restaurant_menu_as_of(TIMESTAMP '2026-01-01 00:02:00', run => 1) WHERE item = 'naan'

| function | rows |
| --- | --- |
| `<pipeline>_<table>(known_at, run, close)` | all that were current at the known-at |
| `<pipeline>_<table>_as_of(as_of, known_at, run, close)` | those of them that were true at a moment; by default now |
| `<pipeline>_<table>_between(from_time, to_time, known_at, run, close)` | those that were true between two moments |

Every argument is optional. Without `known_at`, `run` (the number of a completed run) and `close` (the name of a close)
the known-at is that of the last completed run. With a close all rows are of its period (plan/closes.py), by default as
of its end. The functions are temporary: they live as long as the session. Filter and sort in SQL. A moment before a
table's horizon fails (plan/horizon.py); horizons and closes are those of when the functions were made. So does a
known-at that a run which has not ended has reached: the answer can still change. While a forgetting has not derived
again what it removed, all calls fail, also those of functions that were made before it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from operator import attrgetter
from typing import TYPE_CHECKING

from hindcast.bitemporal import predicates
from hindcast.contract import Contract
from hindcast.contract.names import AS_OF, BETWEEN, CLOSED_UP_TO, MOMENT
from hindcast.plan import closes, horizon, journal
from hindcast.plan.closes import Close
from hindcast.plan.horizon import Horizon
from hindcast.store import store_formats, table_columns, tables
from hindcast.store.tables import Table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession, warehouse: str, contract: Contract) -> None:
    """Create the functions of a pipeline's published tables in a session, classic or Connect."""
    for statement in build_statements(warehouse, contract):
        spark.sql(statement)


def build_statements(warehouse: str, contract: Contract) -> list[str]:
    """Return the statements that create the functions; unpublished tables have none."""
    kept = closes.list_kept(warehouse, contract.pipeline)
    runs = _table_expression(journal.runs_table(warehouse, contract.pipeline))
    statements = [_build_moment_function(contract.pipeline, runs, kept)]
    for name in (*contract.topics, *contract.views):
        table = tables.locate_table(warehouse, contract, name)
        if tables.open_table(table) is not None:
            statements += _build_functions(table, kept)
    return statements


def _build_functions(table: Table, kept: Sequence[Close]) -> list[str]:
    name, limit = f"{table.pipeline}_{table.name}", horizon.read_horizon(table)
    statements = [_build_closed_up_to_function(f"{name}{CLOSED_UP_TO}", table)] if table.kind == "windows" else []
    times = {"from_time": "TIMESTAMP", "to_time": "TIMESTAMP"}
    as_of = f"coalesce(:as_of, {_look_up_close(kept, _END)}, current_timestamp())"
    true_then = predicates.as_of_condition(table.kind, as_of)
    true_during = predicates.during_condition(table.kind, _FROM_ARGUMENT, _TO_ARGUMENT)
    allowed_at, *allowed = (
        f"{_refuse_before_horizon(table, limit, kept, 'true', bound)} AND {_refuse_other_periods(kept, bound)}"
        for bound in (":as_of", ":from_time", ":to_time")
    )
    allowed_between = " AND ".join([_REVERSED_CHECK, *allowed])
    return [
        *statements,
        _build_function(table, limit, kept, name, {}, "true", "true"),
        _build_function(table, limit, kept, f"{name}{AS_OF}", {"as_of": "TIMESTAMP"}, allowed_at, true_then),
        _build_function(table, limit, kept, f"{name}{BETWEEN}", times, allowed_between, true_during),
    ]


_START, _END, _KNOWN_AT = attrgetter("start"), attrgetter("end"), attrgetter("known_at")


def _look_up_close(kept: Sequence[Close], of: Callable[[Close], datetime]) -> str:
    """Return an SQL expression: a moment of the close that `:close` names, or null for none.

    Spark takes one text in far less time than a CASE of all closes. A name has no quotes, commas or equals signs.
    """
    if not kept:
        return "CAST(NULL AS TIMESTAMP)"
    listed = ",".join(f"{close.name}={(of(close) - predicates.FIRST_MOMENT) // _MICROSECOND}" for close in kept)
    return f"timestamp_micros(CAST(try_element_at(str_to_map('{listed}', ',', '='), :close) AS BIGINT))"


_MICROSECOND = timedelta(microseconds=1)


def _refuse_other_periods(kept: Sequence[Close], bound: str) -> str:
    """Return an SQL expression: true, or an error if `bound` is not of the period of the close that is named."""
    is_outside = f"{bound} NOT BETWEEN {_look_up_close(kept, _START)} AND {_look_up_close(kept, _END)}"
    message = f"concat({bound}, ' is not of the period of the close ', :close)"
    return f"if({is_outside}, raise_error({message}), true)"


def _select_period(kind: str, kept: Sequence[Close]) -> str:
    """Return the condition of the rows that are of the period of the close that is named; true for none."""
    end = _END if kind == "versions" else lambda close: close.end - _MICROSECOND
    start = _look_up_close(kept, _START)
    # Without a start also for a name of none: null would be false, and hide the error for it
    return f"({start} IS NULL OR {predicates.during_condition(kind, start, _look_up_close(kept, end))})"


def _refuse_before_horizon(table: Table, limit: Horizon | None, kept: Sequence[Close], moment: str, bound: str) -> str:
    """Return an SQL expression: `moment`, or an error if `bound` is before the table's horizon.

    With a close there is an error if the table cannot answer it, and `bound` does not matter.
    """
    if limit is None:
        return moment
    message = str(horizon.beyond_horizon_error(table, "what is asked for", limit)).replace("'", "")
    is_early = f":close IS NULL AND {bound} < {predicates.spark_timestamp(limit.moment)}"
    if bound == ":from_time":  # from the beginning on means all that is kept
        is_early += f" AND {bound} > {predicates.spark_timestamp(predicates.FIRST_MOMENT)}"
    answered = set(limit.removal.select_kept(kept))
    if lost := ", ".join(f"'{close.name}'" for close in kept if close not in answered):
        is_early += f" OR :close IN ({lost})"
    return f"if({is_early}, raise_error('{message}'), {moment})"


def _refuse_unsettled(table: Table) -> str:
    """Return an SQL expression: true, or an error if a run that is known at `:known_at` has not ended."""
    runs = _table_expression(journal.runs_table(table.warehouse, table.pipeline))
    has_ended = "bool_or(entry IN ('completed', 'abandoned'))"
    open_runs = f"SELECT min(knownAt) AS at FROM {runs} GROUP BY run HAVING NOT {has_ended}"  # noqa: S608  # names of ours
    message = "a run that is known then has not ended: the answer can still change"
    return f"if(:known_at >= (SELECT min(at) FROM ({open_runs})), raise_error('{message}'), true)"  # noqa: S608


def _refuse_forgotten(table: Table) -> str:
    """Return an SQL expression: true, or an error while a forgetting has not derived again what it removed.

    As `read.refuse_forgotten`, but of any table of the pipeline.
    """
    runs = _table_expression(journal.runs_table(table.warehouse, table.pipeline))
    forgets, skips = (
        f"bool_or(entry = 'planned' AND get_json_object(detail, '$.{field}') IS NOT NULL)"
        for field in ("forgets", "upgrade.without")  # of plans: plan/purposes.py
    )
    done = f"bool_or(entry = 'completed') AND NOT {skips}"
    columns = f"run, {forgets} AS forgets, {done} AS done, bool_and(entry = 'planned') AS planned"
    past = f"SELECT {columns} FROM {runs} GROUP BY run"  # noqa: S608  # names of ours
    erasing = "max(run) FILTER (WHERE forgets) AS erasing, max(run) FILTER (WHERE forgets AND planned) AS planned"
    last = f"SELECT {erasing}, max(run) FILTER (WHERE done) AS done FROM ({past})"  # noqa: S608
    found = "has removed rows that it forgets, and has not derived the tables again"
    run = f"hindcast run {table.pipeline}"
    planned = "repeat when it has; if it was killed, repeat the hindcast forget that began it, or hindcast abandon"
    fix = f"if(erasing = planned, '{planned} {table.pipeline}, then {run}', '{run}')"
    message = f"concat('run ', erasing, ' {found}: ', {fix})"
    return f"(SELECT if(erasing > coalesce(done, 0), raise_error({message}), true) FROM ({last}))"  # noqa: S608


def _refuse_before_downgrade(table: Table, moment: str) -> str:
    """Return an SQL expression: `moment`, or an error if a downgrade dropped what was known then."""
    delta_table = tables.open_table(table)
    if delta_table is None:
        return moment
    if (first := horizon.find_first_known(delta_table)) is None:
        return moment
    is_early = f"{moment} < {predicates.spark_timestamp(first)}"
    return f"if({is_early}, raise_error('a downgrade dropped what was known before {first.isoformat()}'), {moment})"


_FROM_ARGUMENT = "coalesce(:from_time, TIMESTAMP '0001-01-02 00:00:00')"
_TO_ARGUMENT = "coalesce(:to_time, TIMESTAMP '9999-12-30 00:00:00')"
_REVERSED_CHECK = "if(:from_time > :to_time, raise_error('the times are reversed: from_time is after to_time'), true)"
"""Refusals are conditions of their own: inside another condition, rows that do not reach it would hide the error."""


def _build_function(
    table: Table,
    limit: Horizon | None,
    kept: Sequence[Close],
    function: str,
    parameters: dict[str, str],
    allowed: str,
    condition: str,
) -> str:
    """Return the statement that creates a table function; `:name` in its conditions is a parameter.

    No column can hide a parameter. `allowed` is evaluated before anything else, also for rows that do not match.
    """
    moment = f"{table.pipeline}{MOMENT}(:known_at, :run, :close)"
    moment = _refuse_before_downgrade(table, _refuse_before_horizon(table, limit, kept, moment, moment))
    columns = [f"`{column}`" for column in table_columns.list_columns(table)]
    if table.kind == "windows":
        columns.append(predicates.window_closed_column(f"{table.pipeline}_{table.name}{CLOSED_UP_TO}({moment})"))
    all_parameters = {**parameters, "known_at": "TIMESTAMP", "run": "INT", "close": "STRING"}
    allowed = f"{_refuse_forgotten(table)} AND {_refuse_unsettled(table)} AND {allowed}"
    known = predicates.known_at_condition(moment)
    condition = f"{allowed} AND {known} AND {condition} AND {_select_period(table.kind, kept)}"
    condition = condition.replace('"timestamp"', "`timestamp`")
    selected = ", ".join(columns)
    for parameter in all_parameters:
        place = f"{function}.{parameter}"
        condition, selected = (text.replace(f":{parameter}", place) for text in (condition, selected))
    declared = ", ".join(f"{parameter} {kind} DEFAULT NULL" for parameter, kind in all_parameters.items())
    return (
        f"CREATE OR REPLACE TEMPORARY FUNCTION {function}({declared}) RETURNS TABLE "  # noqa: S608  # names of ours
        f"RETURN SELECT {selected} FROM {_rows_expression(table)} WHERE {condition}"
    )


def _build_moment_function(pipeline: str, runs: str, kept: Sequence[Close]) -> str:
    """Return the statement that creates the function of the known-at of a query."""
    completed = f"FROM {runs} WHERE entry = 'completed'"
    unknown = "CAST(raise_error(concat('no close ', close)) AS TIMESTAMP)"
    of_close = f"coalesce({_look_up_close(kept, _KNOWN_AT)}, {unknown})".replace(":close", "close")
    known = f"element_at((SELECT map_from_entries(collect_set(struct(run, knownAt))) {completed}), run)"
    return (
        f"CREATE OR REPLACE TEMPORARY FUNCTION {pipeline}{MOMENT}(known_at TIMESTAMP, run INT, close STRING) "
        "RETURNS TIMESTAMP RETURN CASE "
        f"WHEN close IS NOT NULL THEN {of_close} "
        f"WHEN run IS NOT NULL THEN coalesce({known}, raise_error(concat('no completed run ', run))) "
        f"WHEN known_at IS NULL THEN (SELECT max(knownAt) {completed}) "
        # Two conditions: Spark folds the first, and where it is false no subquery stays in the plan
        f"WHEN known_at > current_timestamp() AND known_at > (SELECT max(knownAt) {completed}) "
        "THEN raise_error(concat('what will be known at ', known_at, ' is not known yet')) "
        "ELSE known_at END"
    )


def _build_closed_up_to_function(function: str, table: Table) -> str:
    """Return the statement that creates a function: up to when windows had closed, as known at a moment."""
    last = f"CAST(max_by(get_json_object(detail, '$.tables.{table.name}.closedUpTo'), knownAt) AS TIMESTAMP)"
    completed = (
        f"FROM {_table_expression(journal.runs_table(table.warehouse, table.pipeline))} WHERE entry = 'completed'"
    )
    return (
        f"CREATE OR REPLACE TEMPORARY FUNCTION {function}(moment TIMESTAMP) RETURNS TIMESTAMP "
        f"RETURN (SELECT {last} {completed} AND knownAt <= {function}.moment)"
    )


def _rows_expression(table: Table) -> str:
    """Return the rows of a table as SQL; for an older store format, through its proxy view."""
    delta_table = tables.open_table(table)
    older_format = tables.read_older_format(delta_table) if delta_table is not None else None
    if delta_table is None or older_format is None:
        return _table_expression(table)
    names = [field.name for field in delta_table.schema().fields]
    selected = [f"`{name}`" for name in store_formats.user_columns(names)]
    selected += [
        f"{text} AS `{name}`" for name, text in store_formats.proxy_columns(older_format, names, "spark").items()
    ]
    return f"(SELECT {', '.join(selected)} FROM {_table_expression(table)})"  # noqa: S608  # names of ours


def _table_expression(table: Table) -> str:
    return f"delta.`{table.path.replace('`', '``')}`"
