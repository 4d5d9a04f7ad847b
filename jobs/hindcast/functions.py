"""Table functions of Spark SQL, one set per pipeline: the questions of `questions`, asked from SQL.

    SELECT * FROM restaurant_menu_as_of(TIMESTAMP '2026-01-01 00:02:00', run => 1) WHERE item = 'naan'

| function | rows |
| --- | --- |
| `<pipeline>_<table>(known_at, run)` | all that were believed |
| `<pipeline>_<table>_as_of(as_of, known_at, run)` | those of them that were true at a moment; now if left out |
| `<pipeline>_<table>_between(from_time, to_time, known_at, run)` | those that were true at some moment between two |

Every argument may be left out. Known at the last completed run if neither `known_at` nor `run`, the number of a
completed run, is given. They are temporary: of the session that made them. A key and an order are SQL's own. A moment
before a table's horizon fails (horizon.py), as it was when the functions were made.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from hindcast import horizon, questions
from hindcast.contracts import Contract
from hindcast.contracts.names import AS_OF, BETWEEN, CLOSED_UP_TO, MOMENT
from hindcast.delta import store_formats, tables
from hindcast.delta.tables import Table
from hindcast.horizon import Horizon
from hindcast.planning import journal

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession, warehouse: str, contract: Contract) -> None:
    """Makes the functions of a pipeline's published tables in a session, classic or Connect."""
    for statement in statements(warehouse, contract):
        spark.sql(statement)


def statements(warehouse: str, contract: Contract) -> list[str]:
    """The statements that make the functions; tables that have not been published yet have none."""
    made = [_moment(contract.pipeline, _path(journal.table(warehouse, contract.pipeline)))]
    for name in (*contract.topics, *contract.views):
        table = tables.located(warehouse, contract, name)
        if tables.opened(table) is not None:
            made += _functions(table)
    return made


def _functions(table: Table) -> list[str]:
    name, at = f"{table.pipeline}_{table.name}", horizon.of(table)
    made = [_closed_up_to(f"{name}{CLOSED_UP_TO}", table)] if table.kind == "windows" else []
    times = {"from_time": "TIMESTAMP", "to_time": "TIMESTAMP"}
    true, during = questions.as_of(table.kind, _AS_OF), questions.during(table.kind, _FROM, _TO)
    at_one = _kept(table, at, "true", ":as_of")
    at_each = " AND ".join([_REVERSED, *(_kept(table, at, "true", asked) for asked in (":from_time", ":to_time"))])
    return [
        *made,
        _asking(table, at, name, {}, "true", "true"),
        _asking(table, at, f"{name}{AS_OF}", {"as_of": "TIMESTAMP"}, at_one, true),
        _asking(table, at, f"{name}{BETWEEN}", times, at_each, during),
    ]


def _kept(table: Table, at: Horizon | None, moment: str, asked: str) -> str:
    """A moment, or a condition (an SQL expression), that fails if what is `asked` lies before the table's horizon."""
    if at is None:
        return moment
    told = str(horizon.beyond(table, "what is asked for", at)).replace("'", "")
    early = f"{asked} < {questions.moment(at.at)}"
    if asked == ":from_time":  # from the beginning on: all that is kept
        early += f" AND {asked} > {questions.moment(questions.BEGINNING)}"
    return f"if({early}, raise_error('{told}'), {moment})"


def _still_known(table: Table, moment: str) -> str:
    """A moment (an SQL expression) that fails if what was believed then was given up by a downgrade."""
    found = tables.opened(table)
    since = found.metadata().configuration.get(store_formats.SINCE) if found is not None else None
    if since is None:
        return moment
    early = f"{moment} < {questions.moment(datetime.fromisoformat(since))}"
    return f"if({early}, raise_error('what was believed before {since} was given up by a downgrade'), {moment})"


_AS_OF = "coalesce(:as_of, current_timestamp())"
_FROM = "coalesce(:from_time, TIMESTAMP '0001-01-02 00:00:00')"
_TO = "coalesce(:to_time, TIMESTAMP '9999-12-30 00:00:00')"
_REVERSED = "if(:from_time > :to_time, raise_error('the times are reversed: from_time is after to_time'), true)"
"""What refuses a question is a condition of its own: within another one, rows that need not ask would pass by it."""


def _asking(
    table: Table, at: Horizon | None, function: str, parameters: dict[str, str], allowed: str, condition: str
) -> str:
    """The table function `function`; `:name` in a condition is a parameter, which no column can hide.

    What is `allowed` is asked before anything else, also of a row that the question is not about.
    """
    moment = f"{table.pipeline}{MOMENT}(:known_at, :run)"
    moment = _still_known(table, _kept(table, at, moment, moment))
    shown = [f"`{column}`" for column in tables.columns(table)]
    if table.kind == "windows":
        shown.append(questions.closed(f"{table.pipeline}_{table.name}{CLOSED_UP_TO}({moment})"))
    every = {**parameters, "known_at": "TIMESTAMP", "run": "INT"}
    condition = f"{allowed} AND {questions.known_at(moment)} AND {condition}".replace('"timestamp"', "`timestamp`")
    selected = ", ".join(shown)
    for parameter in every:
        place = f"{function}.{parameter}"
        condition, selected = (text.replace(f":{parameter}", place) for text in (condition, selected))
    declared = ", ".join(f"{parameter} {kind} DEFAULT NULL" for parameter, kind in every.items())
    return (
        f"CREATE OR REPLACE TEMPORARY FUNCTION {function}({declared}) RETURNS TABLE "  # noqa: S608  # names of ours
        f"RETURN SELECT {selected} FROM {_rows(table)} WHERE {condition}"
    )


def _moment(pipeline: str, runs: str) -> str:
    """The function of the known-at that is meant."""
    completed = f"FROM {runs} WHERE entry = 'completed'"
    known = f"element_at((SELECT map_from_entries(collect_set(struct(run, knownAt))) {completed}), run)"
    return (
        f"CREATE OR REPLACE TEMPORARY FUNCTION {pipeline}{MOMENT}(known_at TIMESTAMP, run INT) RETURNS TIMESTAMP "
        "RETURN CASE "
        f"WHEN run IS NOT NULL THEN coalesce({known}, raise_error(concat('no completed run ', run))) "
        f"WHEN known_at IS NULL THEN (SELECT max(knownAt) {completed}) "
        # Apart: the first is folded, and where it is false no subquery stays in the plan
        f"WHEN known_at > current_timestamp() AND known_at > (SELECT max(knownAt) {completed}) "
        "THEN raise_error(concat('what will be known at ', known_at, ' is not known yet')) "
        "ELSE known_at END"
    )


def _closed_up_to(function: str, table: Table) -> str:
    """The function of the moment up to which windows had closed, as known at another."""
    last = f"CAST(max_by(get_json_object(detail, '$.tables.{table.name}.closedUpTo'), knownAt) AS TIMESTAMP)"
    completed = f"FROM {_path(journal.table(table.warehouse, table.pipeline))} WHERE entry = 'completed'"
    return (
        f"CREATE OR REPLACE TEMPORARY FUNCTION {function}(moment TIMESTAMP) RETURNS TIMESTAMP "
        f"RETURN (SELECT {last} {completed} AND knownAt <= {function}.moment)"
    )


def _rows(table: Table) -> str:
    """The rows of a table; those of an older store format through the proxy view as it is now."""
    found = tables.opened(table)
    older = tables.older(found) if found is not None else None
    if found is None or older is None:
        return _path(table)
    there = [field.name for field in found.schema().fields]
    shown = [f"`{name}`" for name in store_formats.users(there)]
    shown += [f"{text} AS `{name}`" for name, text in store_formats.proxy(older, there, "spark").items()]
    return f"(SELECT {', '.join(shown)} FROM {_path(table)})"  # noqa: S608  # names of ours


def _path(table: Table) -> str:
    return f"delta.`{table.path.replace('`', '``')}`"
