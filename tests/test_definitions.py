"""What has changed in a contract since the last run: field by field, in few lines, also of old journals."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import pytest
import yaml

from bare_runs import bare_run
from hindcast.common.errors import ContractError
from hindcast.common.yaml_loader import ContractLoader
from hindcast.contract import Contract, load
from hindcast.contract.definition import list_fields
from hindcast.ops.erase.texts import ForgottenTexts
from hindcast.plan import definitions
from hindcast.plan.runs import Run

BILLS = """
pipeline: shop
start: 2026-01-01
topics:
  menu: {read: table, key: {item: string}, value: {price: int}, history_retention: 30 days}
  orders: {read: stream, key: {customer: string}, value: {item: string, quantity: int}}
views:
  bills:
    stream: orders
    join: {table: menu, on: item}
    select: {item: orders.item, amount: quantity * price}
    where: quantity > 1
    expect:
      - expect_column_values_to_not_be_null: {column: amount}
      - expect_column_values_to_be_between: {column: amount, min_value: 0}
"""


def contract(folder: Path, *changes: tuple[str, str]) -> Contract:
    """The contract with parts of its text replaced."""
    text = BILLS
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path = folder / "shop.yaml"
    path.write_text(text)
    return load(path)


def run(number: int, it: Contract, past: list[Run], state: str = "completed", *, old: bool = False) -> Run:
    """A run under a contract as the journal has it; an `old` one as before plans kept texts."""
    fields = {} if old else definitions.list_unstored_fields(past, it)
    known_at = datetime(2026, 1, number, tzinfo=UTC)
    return bare_run("shop", number, known_at, state, contract=it.hash, definition=fields)


def lines(past: list[Run], it: Contract) -> list[str]:
    return definitions.format_change(definitions.describe_change(past, it.hash, list_fields(it)))


def test_each_field_that_was_changed_added_or_removed_is_listed(tmp_path: Path) -> None:
    before = contract(tmp_path)
    after = contract(
        tmp_path,
        ("quantity * price", "quantity * price * 2"),
        ("    where: quantity > 1\n", ""),
        ("30 days", "90 minutes"),
        ("min_value: 0}", "min_value: 0}\n        on_failure: warn"),
        ("value: {price: int}", "value: {price: int, note: string}"),
    )
    gate = "  views.bills.expect.expect_column_values_to_be_between: "
    was = '{"kwargs": {"column": "amount", "min_value": 0}'
    assert lines([run(1, before, [])], after) == [
        "the contract was changed since run 1:",
        "  topics.menu.history_retention: 30 days -> 1:30:00",
        "  views.bills.where removed: quantity > 1",
        "  views.bills.select.amount: quantity * price -> quantity * price * 2",
        f'{gate}{was}}} -> {was}, "on_failure": "warn"}}',
        "  topics.menu.value.note added: string",
    ]


def test_a_column_may_be_named_as_the_gates_are(tmp_path: Path) -> None:
    after = contract(tmp_path, ("value: {price: int}", "value: {price: int, expect: int}, renamed: {expect: [hoped]}"))
    assert lines([run(1, contract(tmp_path), [])], after) == [
        "the contract was changed since run 1:",
        "  topics.menu.value.expect added: int",
        '  topics.menu.renamed.expect added: ["hoped"]',
    ]


def test_all_that_decides_about_the_hash_is_among_the_fields(tmp_path: Path) -> None:
    """Whatever value of the contract is changed: where the hash is another, a field is."""
    here, changed, path = contract(tmp_path), 0, tmp_path / "other.yaml"
    for place, value in _leaves(_read(BILLS)):
        others: list[Any] = [f"({value})", f"{value}2"] if isinstance(value, str) else [7]
        for other in others:
            node = _read(BILLS)
            *above, last = place
            reduce(getitem, above, node)[last] = other
            path.write_text(yaml.safe_dump(node, sort_keys=False))
            try:
                it = load(path)
            except ContractError:
                continue
            changed += it.hash != here.hash
            assert (it.hash == here.hash) == (list_fields(it) == list_fields(here)), place
    assert changed > 5


def _read(text: str) -> Any:
    return yaml.load(text, Loader=ContractLoader)  # noqa: S506  # a safe loader


def _leaves(node: Any, *place: Any) -> Any:
    below = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else None
    if below is None:
        yield place, node
        return
    for name, it in below:
        yield from _leaves(it, *place, name)


def test_a_contract_is_compared_with_that_of_the_last_completed_run(tmp_path: Path) -> None:
    first, second = contract(tmp_path), contract(tmp_path, ("quantity > 1", "quantity > 2"))
    past: list[Run] = []
    for number, (it, state) in enumerate([(first, "completed"), (second, "stopped"), (second, "abandoned")], 1):
        past.append(run(number, it, past, state))
    assert lines([], first) == []
    assert lines(past, first) == []
    assert lines(past, second)[1:] == ["  views.bills.where: quantity > 1 -> quantity > 2"]
    assert lines([*past, run(4, second, past)], second) == []
    kept = [bool(it.plan.definition) for it in past]
    assert kept == [True, True, False], "of each contract one plan has the text"


def test_of_an_old_journal_it_is_said_that_the_former_text_is_not_stored(tmp_path: Path) -> None:
    first, second = contract(tmp_path), contract(tmp_path, ("quantity > 1", "quantity > 2"))
    past = [run(1, first, [], old=True)]
    assert lines(past, second) == ["the contract was changed since run 1; its former text is not stored"]
    past.append(run(2, first, past))
    assert lines(past, second)[0] == "the contract was changed since run 2:", "the next run has stored it"


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("1 + " * 100 + "a", "1 + " * 100 + "b", ("... ", "1 + a")),
        ("a + " + "1 + " * 100 + "1", "b + " + "1 + " * 100 + "1", ("a + 1 + 1", "+ ... (405 characters)")),
        ("a\n  +  1", "a\n  +  2", ("a + 1", "")),
    ],
)
def test_long_texts_are_cut_around_where_they_differ(before: str, after: str, expected: tuple[str, str]) -> None:
    told = definitions._describe_field("views.bills.where", before, after)
    assert told.before is not None
    assert told.after is not None
    assert (told.before.startswith(expected[0]), told.before.endswith(expected[1])) == (True, True), told
    assert max(len(told.before), len(told.after)) < 200
    assert told.before != told.after


def test_many_changes_are_counted(tmp_path: Path) -> None:
    columns = ", ".join(f"c{number}: int" for number in range(100))
    past = [run(1, contract(tmp_path), [])]
    told = lines(past, contract(tmp_path, ("price: int", f"price: int, {columns}")))
    assert (len(told), told[-1]) == (52, "  and 50 more fields")


def test_what_is_forgotten_does_not_stay_in_a_text_that_a_plan_has_kept(tmp_path: Path) -> None:
    kept = definitions.list_unstored_fields([], contract(tmp_path, ("quantity > 1", "customer <> 'Ann Smith'")))
    texts = ForgottenTexts(frozenset({"Ann Smith"}), frozenset({"Ann Smith"}), frozenset({"orders"}))
    change = {"field": "views.bills.where", "before": "customer <> 'Ann Smith'", "after": None}
    told = {
        "definition": [list(field) for field in kept.items()],
        "contract": {"since": 1, "changes": [change], "more": 0},
    }
    assert "Ann Smith" in str(told)
    assert "Ann Smith" not in str(texts.scrub_json(told))
    assert "orders.item" in str(texts.scrub_json(told))
