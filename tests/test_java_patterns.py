"""Java's patterns in Python's matcher: it reads them as Java does, or refuses them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from hindcast.contract import Expectation
from hindcast.contract.java_patterns import ASCII_CLASSES, CATEGORIES, build_compiler, is_readable

READ = [
    (r"^\p{Lu}\p{L}*(?:[ '-]\p{L}+)*$", ("Éva Łoś-Ōno", "éva", "Eva ")),
    (r"^(.*\W)y$", ("éy", "ay", "-y")),
    (r"^\w+\d\s$", ("a1 ", "é1 ", "a٣ ")),
    (r"[^\p{L}\P{Nd}]", ("1", "a", "é", "٣")),
    (r"^\pL[\p{IsLu}\-]$", ("aB", "a-", "ab")),
    (r"^(?<first>\p{Punct})[\p{Digit}(?<]+$", ("]1", "[(", "a1", "!?")),
    (r"^[]\p{Alpha}]+$", ("]a", "[a")),
    (r"^[^]\p{Blank}]+$", ("a[", "]", "a\t")),
    (r"^\[\p{Lo}&&\]$", ("[世&&]", "[a&&]")),
    (r"^\p{Space}++$", (" \t\n\v\f\r", "\u00a0")),
    (r"^a\0101\x41\u0041\x{1F600}\e$", ("aAAA\U0001f600\x1b", "a\b1AA")),
    (r"^[\0101\x{42}\e]\00$", ("A\0", "B\0", "\x1b\0", "C\0")),
    (r"^\v[\v]\h[^\h]$", ("\v\u2028\u3000a", "\v\v a", "\v\v\n\n", "\n\n\t\t")),
    (r"^a.b$", ("a b", "a\rb", "a\u0085b", "a\u2028b", "a\vb")),
    (r"(?s)^a.b$", ("a\rb", "a\nb", "acc")),
    (r"^ab$", ("ab", "ab\n", "ab\r", "ab\r\n", "ab\u2029", "ab\n\r", "ab\r\r")),
    (r"\Aac\Z", ("ac", "ac\n", "ac\u0085", "ac\n\n")),
    (r"\Aad\z", ("ad", "ad\n")),
    (r"\r$", ("ab\r", "ab\r\n", "ab\n\r", "ab")),
    (r"\n$", ("ab\n", "ab\r\n", "ac\n\n", "ab\r")),
    (r"(?i)^sk(?i:é)$", ("SKé", "SKÉ", "\u017fké", "s\u212aé")),
    (r"^(?i:sk)\_\é[\-\]]$", ("SK_é-", "sk_é]", "SK_Éx")),
    (r"^([ab])\1\.$", ("aa.", "ab.", "bb.")),
    (r"^(?>a|ab)c[.$]$", ("ac.", "ac$", "abc.")),
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
        *(r"\b", r"\B", r"\b{g}", r"[\b]", r"\R", r"\X", r"\H", r"\V", r"\cA", r"\N{DIGIT ONE}", r"(?<a>b)\k<a>"),
        *(r"\08", r"\x1", r"\u004", r"\ud83d\ude00", r"\x{110000}", r"[\1]", r"(a)\11", r"[\A]", r"[\z]"),
        *("(?x)a b", "(?u)a", "(?U)a", "(?d)a", "(?m)a", "(?s:.)", "a(?i)b", "(?i-s:a)", "(?iu:a)", r"(?i)\p{Lu}"),
        *(r"[!-\p{Lu}]", r"[\p{Lu}-z]", r"[\v-z]", r"[a-\h]", r"[]-\h]"),
    ],
)
def test_what_python_would_read_otherwise_is_refused(pattern: str) -> None:
    assert not is_readable(pattern)


@given(st.text(max_size=30), st.sampled_from([*sorted(CATEGORIES), *ASCII_CLASSES]), st.sampled_from("pP"))
def test_a_property_has_each_character_or_its_complement_has(text: str, name: str, sign: str) -> None:
    one, other = (build_compiler()(rf"\{it}{{{name}}}", text) for it in (sign, "pP".replace(sign, "")))
    assert all((one.fullmatch(c) is None) != (other.fullmatch(c) is None) for c in text)


def test_a_list_of_which_any_may_match_is_one_pattern() -> None:
    def patterns(**parameters: str) -> list[str]:
        kwargs = {"column": "note", "regex_list": ["(a|a", "a)*$"], **parameters}
        gate = Expectation.model_construct(type="expect_column_values_to_match_regex_list", kwargs=kwargs)
        return [regex for _, regex in gate.regexes]

    assert patterns() == patterns(match_on="any") == ["(a|a|a)*$"]
    assert patterns(match_on="all") == ["(a|a", "a)*$"]
