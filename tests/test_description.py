"""Descriptions of contracts, which are Markdown, where they are shown as text."""

from __future__ import annotations

import time

import pytest

from hindcast.contract.description import split_paragraphs, summarize_description


@pytest.mark.parametrize(
    ("text", "summary"),
    [
        ("**bills** charges each order\nby the price that was valid\nat its time. See `menu`.\n\nMore.", None),
        ("Prices v1.2 of all items\n\nMore of them.", "Prices v1.2 of all items"),
        ("# The [menu](https://example.org/menu) _today_!\nIt changes.", "The menu today!"),
        ("snake_case_names and 2 * 3 * 4 stay", "snake_case_names and 2 * 3 * 4 stay"),
        ("- one\n- two", "one two"),
        ("", ""),
        ("**a *b* c** and *a **b** c*, `count(*)` and `sum(*)`", "a *b* c and a **b** c, count(*) and sum(*)"),
        ("_by_day_ and __of_all__, 2 * 3 * 4", "by_day and of_all, 2 * 3 * 4"),
        ("*" * 5_000 + "x", "*" * 1_000),
    ],
)
def test_the_first_sentence_stands_for_all(text: str, summary: str | None) -> None:
    expected = "bills charges each order by the price that was valid at its time." if summary is None else summary
    assert summarize_description(text) == expected


def test_paragraphs_are_lines_without_marks() -> None:
    assert split_paragraphs("> **a**\nb\n \n`c_d`") == ["a b", "c_d"]


@pytest.mark.parametrize("part", ["`", "*", "_", "`a", "*a ", "*** a ", "__ ***", "_a _", "[", "[a](b", "\n", " "])
def test_no_description_takes_long_to_show(part: str) -> None:
    text, begun = "x " + part * (6_000 // len(part)), time.process_time()
    split_paragraphs(text)
    assert time.process_time() - begun < 0.1
