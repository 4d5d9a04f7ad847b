"""Queries of gates: what is refused without Spark, and that nothing is refused that Spark might take."""

from __future__ import annotations

import pytest

from hindcast.contract import Expectation
from hindcast.contract.parsing import ExpressionError
from hindcast.contract.queries import (
    find_condition_problem,
    find_query_problem,
    find_unknown_column,
    list_projected_columns,
    wrap_condition,
)
from hindcast.contract.query_limits import IN_TIME, write_time_limits
from hindcast.quality.expectations import configure_gate

COLUMNS = ["id", "price", "note", "tags", "place", "validFrom"]

LACKING = [
    ("SELECT * FROM _batch WHERE cost > 0", "cost"),
    ("SELECT b.cost FROM _batch b", "cost"),
    ("SELECT _batch.cost FROM _batch", "cost"),
    ("SELECT * FROM _batch WHERE upper(nota) = 'X'", "nota"),
    ("SELECT * FROM _batch WHERE city.name = 'X'", "city"),
    ("SELECT id, count(*) AS n FROM _batch GROUP BY id HAVING n > cost", "cost"),
    ("SELECT * FROM _batch WHERE id IN (SELECT id FROM _batch WHERE cost > 0)", "cost"),
    ("WITH a AS (SELECT id, cost FROM _batch) SELECT id FROM a", "cost"),
    ("SELECT * FROM (SELECT id FROM _batch) WHERE cost > 0", "cost"),
    ("SELECT * FROM _batch a JOIN _batch b ON a.id = b.other", "other"),
    ("SELECT id FROM _batch UNION SELECT cost FROM _batch", "cost"),
    ("SELECT *, row_number() OVER (PARTITION BY id ORDER BY cost) AS n FROM _batch", "cost"),
    ("SELECT * FROM _batch WHERE exists(tags, tag -> tag > cost)", "cost"),
    ("SELECT * FROM _batch WHERE systemTo IS NULL", "systemTo"),
    ("SELECT * FROM _batch WHERE `cost` > 0;", "cost"),
    (wrap_condition("cost > 0"), "cost"),
    (wrap_condition("price > 0 -- and cost"), None),
]


@pytest.mark.parametrize(("query", "column"), LACKING)
def test_a_column_that_is_certainly_not_there_is_found(query: str, column: str | None) -> None:
    assert find_unknown_column(query, COLUMNS) == column


TAKEN = [
    "SELECT * FROM _batch WHERE PRICE > 0 AND validfrom < current_date AND note <> current_user AND note <> user",
    "SELECT price * 2 AS twice FROM _batch WHERE twice > 1 ORDER BY twice",
    "SELECT id, count(*) n FROM _batch GROUP BY id HAVING n > 1 ORDER BY ALL",
    "SELECT `count(1)` FROM (SELECT count(*) FROM _batch)",
    "SELECT n FROM (SELECT id FROM _batch) AS t(n)",
    "SELECT t.n FROM (SELECT id FROM _batch) AS t(n)",
    "WITH a(x) AS (SELECT id FROM _batch) SELECT a.x FROM a",
    "WITH a AS (SELECT id AS x FROM _batch), b AS (SELECT x FROM a) SELECT b.* FROM b",
    "SELECT * FROM _batch a WHERE EXISTS (SELECT 1 FROM _batch b WHERE a.id = b.id)",
    "SELECT * FROM _batch JOIN shops s ON s.cost > 0",
    "SELECT cost FROM shops",
    "SELECT * FROM _batch WHERE id IN (SELECT cost FROM delta.`/a/b`)",
    "SELECT * FROM _batch LATERAL VIEW explode(tags) AS tag WHERE tag = 'x'",
    "SELECT * FROM _batch, LATERAL (SELECT price AS x) WHERE x > 1",
    "SELECT col FROM (SELECT explode(tags) FROM _batch)",
    "SELECT c0 FROM (SELECT json_tuple(note, 'a') FROM _batch)",
    "SELECT col1 FROM (SELECT inline(array(place)) FROM _batch)",
    "SELECT city FROM (SELECT place.* FROM _batch)",
    "SELECT city FROM (SELECT b.place.* FROM _batch b)",
    "SELECT city FROM (SELECT b.place.* FROM _batch b) AS place",
    "SELECT cost FROM other._batch",
    "SELECT id, grouping__id FROM _batch GROUP BY id WITH CUBE",
    "SELECT key FROM (SELECT TRANSFORM(id, price) USING 'cat' FROM _batch)",
    "SELECT a FROM (SELECT posexplode(tags) AS (a, b) FROM _batch)",
    "SELECT place.city, _batch.place.city, count(b) FROM _batch b GROUP BY ALL",
    "SELECT * FROM _batch WHERE exists(tags, tag -> tag > 1 AND tag.x = 2)",
    "SELECT named_struct('a', id) AS s FROM _batch WHERE s.a = 1",
    "SELECT * FROM _batch PIVOT (sum(price) FOR note IN ('x', 'y')) WHERE x > 1",
    "SELECT col1 FROM VALUES (1)",
    "SELECT id FROM range(10)",
    "SELECT * FROM _batch WHERE timestampdiff(DAY, validFrom, now()) > 1 AND extract(YEAR FROM validFrom) = 2026",
    "SELECT * FROM _batch WHERE _offset > 1 AND validFrom > now() - INTERVAL 1 DAY",
    "SELECT * FROM _batch WHERE",
    "SELECT 1; SELECT cost FROM _batch",
    "not SQL",
    "",
    wrap_condition("id > 1) OR (price IN (1, 2)"),
    wrap_condition("price >"),
]


@pytest.mark.parametrize("query", TAKEN)
def test_what_spark_might_take_is_not_refused(query: str) -> None:
    assert find_unknown_column(query, COLUMNS) is None


@pytest.mark.parametrize(
    ("query", "columns"),
    [
        ("SELECT id, b.price FROM _batch b", ["id", "price"]),
        ("SELECT DISTINCT id, price * 2 AS twice FROM _batch", ["id", "twice"]),
        ("SELECT id FROM _batch UNION ALL SELECT price FROM _batch", ["id"]),
        ("WITH a AS (SELECT * FROM _batch) SELECT id FROM a", ["id"]),
        ("SELECT * FROM _batch", None),
        ("SELECT id, b.* FROM _batch b", None),
        ("SELECT * EXCEPT (id) FROM _batch", None),
        ("SELECT id, max(price) FROM _batch GROUP BY id", None),
        ("FROM _batch SELECT", None),
        ("SELECT id FROM _batch WHERE", None),
    ],
)
def test_the_columns_that_a_query_gives_are_told_where_it_names_each(query: str, columns: list[str] | None) -> None:
    assert list_projected_columns(query) == columns


REACHING = {
    "k IN (SELECT TRANSFORM(k) USING 'tee /tmp/x' AS (y string) FROM t) AND price !< 0": "starts a program",
    "exists(SELECT 1 FROM text.`/etc/passwd` WHERE value LIKE 'root:x%') AND price !> 0": "is not a condition",
    "`reflect`('java.lang.System', 'getProperty', 'user.name') <> ''": "calls Java by 'reflect'",
    "java_method /* a comment */ ('a', 'b') = 'x'": "calls Java by 'java_method'",
    "exists(SELECT * FROM `org.apache.spark.sql.execution.datasources.text.TextFileFormat`.`a.md`)": "by their path",
    "exists(SELECT * FROM image.README)": "reads files by their path",
    "exists(SELECT * FROM table_changes_by_path('/a/b', 0))": "reads files by their path, table_changes_by_path",
    "id IN (SELECT value FROM LATERAL text.`/etc/passwd`)": "no table, no query and no function",
    "exists(SELECT * FROM shops, LATERAL delta.`/a/b`)": "no table, no query and no function",
    "exists(WITH a AS (SELECT * FROM shops JOIN LATERAL json.`/a`) SELECT * FROM a)": "no table, no query",
    "exists(SELECT * FROM STREAM(text.`/etc/passwd`))": "reads files by their path, stream",
    "exists(SELECT * FROM `stream` (csv.readme) AS s)": "reads files by their path, stream",
    "exists(SELECT * FROM shown(TABLE(text.`/etc/passwd`)))": "reads files by their path, table",
    "xpath_string(note, 'a') = 'x'": "fetches what a document names, with 'xpath_string'",
    "from_protobuf(note, 'A', '/etc/x') IS NULL": "reads files by their path, from_protobuf",
    "from_xml(note, 'a int', map('rowValidationXSDPath', '/x')) IS NULL": "may read files",
    "from_xml(note, 'a int', place) IS NULL": "may read files",
    "exists(SELECT * FROM identifier('text.' || note))": "IDENTIFIER",
    "price >>> 1 = 0": "is not a condition",
    "exists(SELECT * FROM `c\u017fv`.schemas)": "reads files by their path",
    "date(" * 29 + "price" + ")" * 29 + " AND price !< 0": "is not a condition",
    "struct(" * 29 + "price" + ")" * 29 + " AND price !< 0": "is not a condition",
}


def test_a_comment_hides_nothing_since_spark_gets_none() -> None:
    """Spark's comments go on over a line that ends in a backslash, sqlglot's do not."""
    kwargs = {"column": "price", "row_condition": "note <> 'a' -- \\\n || '\nOR price > 1 -- \\\n'\n"}
    asked = configure_gate(Expectation(type="expect_column_values_to_not_be_null", kwargs=kwargs), {}).kwargs
    assert asked["row_condition"] == "note <> 'a' || '\nOR price > 1 -- \\\n'"
    query = {"unexpected_rows_query": "SELECT * /* a */ FROM {batch} -- \\\nWHERE price > 1"}
    asked = configure_gate(Expectation(type="unexpected_rows_expectation", kwargs=query), {}).kwargs
    assert asked["unexpected_rows_query"] == "SELECT * FROM {batch} WHERE price > 1"


@pytest.mark.parametrize("condition", REACHING)
def test_what_reaches_beyond_tables_is_refused(condition: str) -> None:
    assert REACHING[condition] in (find_condition_problem(condition) or "")
    assert find_query_problem(wrap_condition(condition))


@pytest.mark.parametrize("condition", ["price > 0) OR (price < 0", "price > 0) LIMIT (1", "price > 0) ORDER BY (id"])
def test_a_condition_ends_where_its_bracket_does(condition: str) -> None:
    assert find_condition_problem(condition) == "is not a condition that can be parsed"


@pytest.mark.parametrize(
    "condition",
    [
        "price > 0 AND note LIKE 'a%' -- and so on",
        "id IN (SELECT id FROM shops.closed)",
        "map(price) IS NOT NULL",
        "(price > 0) OR (price < 0)",
        "exists(SELECT * FROM shops JOIN LATERAL explode(tags), LATERAL (SELECT price AS x) WHERE x > 1)",
        "exists(SELECT 1 FROM range(3))",
        "validFrom < current_timestamp() AND tags[0] = 'x'",
        "from_json(note, 'a int', map('mode', 'PERMISSIVE')).a = 1",
    ],
)
def test_a_condition_over_rows_and_tables_is_taken(condition: str) -> None:
    assert find_condition_problem(condition) is None


LIMITED = [
    ("a RLIKE '^a*$' AND regexp_replace(a, '[^0-9]+', '') = ''", None),
    ("a like '%x%'", None),
    ("a || 'x' RLIKE '(a+)+$' AND b", "[[a || 'x' ~ '(a+)+$']] RLIKE '(a+)+$' AND b"),
    ("NOT b.c NOT REGEXP '(a+)+'", "NOT [[b.c ~ '(a+)+']] NOT REGEXP '(a+)+'"),
    ("a rlike b or a rlike 'a' || '(b)+'", "[[a ~ b]] rlike b or [[a ~ 'a' || '(b)+']] rlike 'a' || '(b)+'"),
    ("a rlike '.*x.*x.*x.*x'", "[[a ~ '.*x.*x.*x.*x']] rlike '.*x.*x.*x.*x'"),
    ("x IN (SELECT y FROM u WHERE u.y rlike '(a)+')", "x IN (SELECT y FROM u WHERE [[u.y ~ '(a)+']] rlike '(a)+')"),
    ("case when a then b else c end rlike '(a)+'", "[[case when a then b else c end ~ '(a)+']] rlike '(a)+'"),
    ("`rlike` rlike '(a)+' and a between 1 and 2", "[[`rlike` ~ '(a)+']] rlike '(a)+' and a between 1 and 2"),
    ("size(split(note, '(,| )+', 3)) > 2", "size(split([[note ~ '(,| )+']], '(,| )+', 3)) > 2"),
    ("a = regexp_substr(regexp_extract(a, b, 1), c)", "a = regexp_substr([[regexp_extract([[a ~ b]], b, 1) ~ c]], c)"),
    ("rlike(concat(a, ',', '('), concat(b, c))", "rlike([[concat(a, ',', '(') ~ concat(b, c)]], concat(b, c))"),
]


@pytest.mark.parametrize(("condition", "limited"), LIMITED, ids=[condition for condition, _ in LIMITED])
def test_a_pattern_that_can_be_slow_has_a_limit_in_the_text_of_its_query(condition: str, limited: str | None) -> None:
    expected = limited or condition
    for written, meant in (("[[", f"{IN_TIME}(cast("), (" ~ ", " AS string), "), ("]]", ")")):
        expected = expected.replace(written, meant)
    assert write_time_limits(wrap_condition(condition)) == wrap_condition(expected)


@pytest.mark.parametrize(
    ("condition", "found"),
    [
        ("exists(tags, tag -> tag rlike '(a)+')", "in a function's ->"),
        ("a COLLATE utf8_lcase rlike '(a)+'", "beside COLLATE"),
        ("rlike(collate(a, 'UTF8_LCASE'), '(a)+')", "beside COLLATE"),
        ("a = b rlike '(a)+'", "written in an unsupported way"),
        ("a between 1 and b rlike '(a)+'", "written in an unsupported way"),
    ],
)
def test_where_no_limit_can_be_written_a_pattern_that_can_be_slow_is_refused(condition: str, found: str) -> None:
    with pytest.raises(ExpressionError, match=found):
        write_time_limits(wrap_condition(condition))
    assert write_time_limits(wrap_condition(condition.replace("(a)+", "a+"))) == wrap_condition(
        condition.replace("(a)+", "a+")
    )
