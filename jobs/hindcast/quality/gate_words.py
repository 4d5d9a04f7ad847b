"""A gate as a sentence, and its line in the contract: what a person reads beside the rows that fail it.

Importing this module needs neither Spark nor Great Expectations.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from hindcast.common.json_values import JsonObject, JsonValue
from hindcast.contract import Contract
from hindcast.contract.expectation import list_named_columns
from hindcast.contract.folder import locate_fields


def describe_rule(expectation: str, kwargs: JsonObject) -> str:
    """Return an expectation with its parameters as a sentence.

    >>> describe_rule("expect_column_values_to_be_between", {"column": "price", "min_value": 0, "strict_min": True})
    'price must be above 0'
    >>> describe_rule("expect_column_values_to_be_in_set", {"column": "currency", "value_set": ["EUR", "USD"]})
    'currency must be one of EUR, USD'
    >>> describe_rule("expect_table_to_be_fresh", {"within": "2 hours"})
    'table must be fresh (within 2 hours)'
    """
    if expectation == "unexpected_rows_expectation":
        return f"No row may be found by {kwargs.get('unexpected_rows_query', 'the query')}"
    subject, _, predicate = expectation.removeprefix("expect_").partition("_to_")
    columns = ", ".join(list_named_columns(kwargs))
    left = {name: value for name, value in kwargs.items() if name not in _NAMING}
    words = _name_subject(subject.replace("_", " "), columns)
    if predicate == "be_between":
        rule = _describe_range(left)
    else:
        rule = _PREDICATES.get(predicate, predicate.replace("_", " "))
        main = next((left.pop(name) for name in _MAIN if name in left), None)
        rule += f" {_format(main)}" if main is not None else ""
    more = ", ".join(f"{name.replace('_', ' ')} {_format(value)}" for name, value in left.items())
    return f"{words} must {rule or 'hold'}{f' ({more})' if more else ''}"


_PREDICATES = {"be_in_set": "be one of", "not_be_in_set": "not be one of"}
"""What reads better than the name of the expectation."""
_NAMING = ("column", "column_A", "column_B", "column_list")
_MAIN = ("value_set", "regex", "regex_list", "like_pattern", "value", "type_", "type_list")
"""The parameter that completes the sentence."""


def _name_subject(subject: str, columns: str) -> str:
    if not columns:
        return subject
    measured = re.sub(r"^(compound |select )?(multi)?column(s| pair)?( values?)?", "", subject).strip()
    return f"{measured} of {columns}" if measured else columns


def _describe_range(left: dict[str, JsonValue]) -> str:
    """Return what is allowed, and remove it from `left`."""
    bounds = []
    for name, strict, words in (
        ("min_value", "strict_min", ("at least", "above")),
        ("max_value", "strict_max", ("at most", "below")),
    ):
        bound, is_strict = left.pop(name, None), bool(left.pop(strict, False))
        if bound is not None:
            bounds.append(f"{words[is_strict]} {_format(bound)}")
    return f"be {' and '.join(bounds)}" if bounds else ""


def _format(value: JsonValue) -> str:
    return ", ".join(map(_format, value)) if isinstance(value, list) else str(value)


def locate_gates(folder: Path, contract: Contract) -> Mapping[tuple[str, int], str]:
    """Return where the gates of a contract stand, by table and number, as `shop.yaml:14`.

    Empty if the contract is not in a file with its pipeline's name.
    """
    places = {
        (name, number): (field, name, "expect", number)
        for field, tables in (("topics", contract.topics), ("views", contract.views))
        for name in tables
        for number in range(len(contract.expectations(name)))
    }
    found = locate_fields(folder, contract.pipeline, places.values())
    return dict(zip(places, found, strict=True)) if found else {}
