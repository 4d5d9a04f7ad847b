"""A gate of a contract: an expectation of Great Expectations or Hindcast, and what a failure does."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, Field, GetPydanticSchema
from pydantic.config import JsonDict
from pydantic_core.core_schema import any_schema

from hindcast.common.errors import suggest_nearest
from hindcast.common.json_values import JsonValue
from hindcast.contract.patterns import combine_patterns
from hindcast.contract.types import ContractModel, ContractValue, pattern_validators

ExpectationName = Annotated[
    str,
    *pattern_validators(
        r"^(expect_[a-z0-9_]+|unexpected_rows_expectation)$",
        "not the name of an expectation; it begins with expect_, or is unexpected_rows_expectation (docs/quality.md)",
    ),
]


Hold = Literal["key", "row"]
"""What a quarantine gate holds back."""

HOLD_DESCRIPTION = (
    "What quarantine gates hold back. key: the whole change of a failing key. row: the failing record of a topic, "
    "which counts as not yet known; or the failing event, pair or window of a view, but no version "
    "(docs/quality.md)."
)
"""The description of the field `hold`."""


OnFailure: TypeAlias = Literal["stop", "quarantine", "warn"]


class Expectation(ContractModel):
    """One gate: an expectation of Great Expectations with its parameters, what it looks at, and what a failure does."""

    type: ExpectationName
    kwargs: dict[str, Annotated[JsonValue, GetPydanticSchema(lambda *_: any_schema())]] = Field(default_factory=dict)
    on_failure: OnFailure = "stop"
    rows: Literal["change", "table"] = "change"

    @property
    def columns(self) -> list[str]:
        """The columns that the parameters name."""
        return list_named_columns(self.kwargs)

    def concerns_columns(self, columns: Collection[str]) -> bool:
        """Return whether the expectation, or the condition on its rows, is about one of these columns."""
        return concerns_columns(self.kwargs, columns)

    @property
    def sql_parameters(self) -> dict[str, str]:
        """The parameters that Spark parses, each with its text."""
        names = ["unexpected_rows_query"] if self.type == "unexpected_rows_expectation" else []
        if not str(self.kwargs.get("condition_parser")).startswith("great_expectations"):
            names.append("row_condition")
        return {name: text for name in names if isinstance(text := self.kwargs.get(name), str)}

    @property
    def regexes(self) -> list[tuple[str, str]]:
        """The regular expressions that values are matched with, each after the name of its parameter.

        Several of which any may match are matched as one.
        """
        listed = self.kwargs.get("regex_list")
        if self.type == "expect_column_values_to_match_regex_list" and isinstance(listed, list):
            texts = [regex for regex in listed if isinstance(regex, str)]
            listed = combine_patterns(texts, any_may_match=self.kwargs.get("match_on") != "all")
        named = [("regex", self.kwargs.get("regex"))]
        named += [("regex_list", regex) for regex in (listed if isinstance(listed, list) else ())]
        return [(name, regex) for name, regex in named if isinstance(regex, str)]

    @property
    def can_fail_without_change(self) -> bool:
        """True if it looks at more than the change of the table, so that it can fail without one."""
        return self.type in _BEYOND_CHANGE

    @property
    def other_table(self) -> str | None:
        """The name of the other table that it looks into, if any."""
        other = self.kwargs.get("table")
        return other if self.type == "expect_foreign_keys_to_be_found" and isinstance(other, str) else None


FRESHNESS_RULE = "expect_table_to_be_fresh"
"""The rule that can fail although nothing has happened."""

RESTATEMENT_RULE = "expect_closed_periods_to_stay"
"""The rule that `restatement: approve` adds to all tables."""

TIES_RULE = "expect_ties_to_be_ordered"
"""The rule that can fail although no row changes: the record that loses a tie changes none."""

_BEYOND_CHANGE = (
    FRESHNESS_RULE,
    TIES_RULE,
    "expect_offsets_to_be_conserved",
    "expect_share_of_records_to_be_at_most",
    "expect_share_of_unmatched_to_be_at_most",
)


def _parse_expectation(item: ContractValue) -> ContractValue:
    """Return `{expect_x: {column: a}, on_failure: warn}` as the fields of an Expectation, or raise ValueError."""
    if not isinstance(item, dict) or "type" in item:
        return item
    names = [name for name in item if name not in GATE_FIELDS]
    if len(names) != 1:
        found = f"a gate names one expectation, found {len(names)}: {', '.join(map(str, names)) or 'none'}"
        unknown = [str(name) for name in names if not str(name).startswith(("expect_", "unexpected_"))]
        fix = (
            f"'{unknown[0]}': {suggest_nearest(unknown[0], GATE_FIELDS)}"
            if unknown
            else "write each as its own list item: - expect_..."
        )
        raise ValueError(f"{found}; {fix}")
    return {
        "type": names[0],
        "kwargs": item[names[0]] or {},
        **{name: item[name] for name in GATE_FIELDS if name in item},
    }


GATE_FIELDS = ("on_failure", "rows")
"""Fields that stand beside an expectation, not among its parameters."""


def gate_schema() -> JsonDict:
    """Return the JSON Schema of a gate as a contract writes it."""
    return {
        "type": "object",
        "properties": {
            "on_failure": {
                "enum": ["stop", "quarantine", "warn"],
                "default": "stop",
                "description": "stop: nothing of the table is published. quarantine: the whole change of the failing "
                "keys is held back. warn: it is reported.",
            },
            "rows": {
                "enum": ["change", "table"],
                "default": "change",
                "description": "The rows that it checks: those that a run would open, or the table as it would be.",
            },
        },
        "patternProperties": {"^(expect_[a-z0-9_]+|unexpected_rows_expectation)$": {"type": ["object", "null"]}},
        "additionalProperties": False,
    }


Gate = Annotated[Expectation, BeforeValidator(_parse_expectation, json_schema_input_type=Any)]


def concerns_columns(kwargs: Mapping[str, ContractValue], columns: Collection[str]) -> bool:
    """Return whether an expectation, or the condition on its rows, is about one of these columns.

    Spark finds a column of the condition whatever its case.
    """
    condition = kwargs.get("row_condition")
    words = {*list_named_columns(kwargs), *(re.findall(r"\w+", condition) if isinstance(condition, str) else ())}
    return not {word.lower() for word in words}.isdisjoint(column.lower() for column in columns)


def list_named_columns(kwargs: Mapping[str, ContractValue]) -> list[str]:
    """Return the columns that an expectation's parameters name."""
    named = [kwargs.get(parameter) for parameter in ("column", "column_A", "column_B")]
    listed = kwargs.get("column_list")
    return [c for c in (*named, *(listed if isinstance(listed, list) else ())) if isinstance(c, str)]
