"""Java's patterns in Python's matcher: it reads them as Java does, or refuses them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from hindcast.contract.java_patterns import ASCII_CLASSES, CATEGORIES, build_compiler, is_readable

READ = [
    (r"^\p{Lu}\p{L}*(?:[ '-]\p{L}+)*$", ("Éva Łoś-Ōno", "éva", "Eva ")),
    (r"^(.*\W)y$", ("éy", "ay", "-y")),
    (r"^\w+\d\b\s$", ("a1 ", "é1 ", "a٣ ")),
    (r"[^\p{L}\P{Nd}]", ("1", "a", "é", "٣")),
    (r"^\pL[\p{IsLu}\-]$", ("aB", "a-", "ab")),
    (r"^(?<first>\p{Punct})[\p{Digit}(?<]+$", ("]1", "[(", "a1", "!?")),
    (r"^[]\p{Alpha}]+$", ("]a", "[a")),
    (r"^[^]\p{Blank}]+$", ("a[", "]", "a\t")),
    (r"^\[\p{Lo}&&\]$", ("[世&&]", "[a&&]")),
    (r"^\p{Space}++$", (" \t\n\v\f\r", "\u00a0")),
]


def test_what_python_reads_matches_as_in_java(spark: SparkSession) -> None:
    texts = sorted({text for _, some in READ for text in some})
    rows = spark.createDataFrame([(text,) for text in texts], "text string").coalesce(1)
    matched = rows.select("text", *(F.col("text").rlike(pattern).alias(pattern) for pattern, _ in READ)).collect()
    compile_pattern = build_compiler()
    for number, (pattern, own) in enumerate(READ, 1):
        java = {row[0]: row[number] for row in matched}
        assert {text: compile_pattern(pattern, text).search(text) is not None for text in texts} == java, pattern
        assert {java[text] for text in own} == {True, False}, pattern


@pytest.mark.parametrize(
    "pattern",
    [
        r"[a-z&&[^y]]",
        "[a[bc]]",
        "[^a&&b]",
        r"\G",
        r"\p{IsLatin}",
        r"[\p{L}[a]]",
        "(",
        r"\Qa\E",
        "[[:alpha:]]",
        r"\p{javaLowerCase}",
    ],
)
def test_what_python_would_read_otherwise_is_refused(pattern: str) -> None:
    assert not is_readable(pattern)


@given(st.text(max_size=30), st.sampled_from([*sorted(CATEGORIES), *ASCII_CLASSES]), st.sampled_from("pP"))
def test_a_property_has_each_character_or_its_complement_has(text: str, name: str, sign: str) -> None:
    one, other = (build_compiler()(rf"\{it}{{{name}}}", text) for it in (sign, "pP".replace(sign, "")))
    assert all((one.fullmatch(c) is None) != (other.fullmatch(c) is None) for c in text)
