"""A gate as it is written: an expectation of Great Expectations or of our own, and what a failure does."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from hindcast.contracts.types import Model, matching
from hindcast.errors import nearest

Type = Annotated[
    str,
    *matching(
        r"^(expect_[a-z0-9_]+|unexpected_rows_expectation)$",
        "not the name of an expectation; it begins with expect_, or is unexpected_rows_expectation (docs/quality.md)",
    ),
]


Hold = Literal["key", "row"]
"""What a quarantine gate holds back."""

HOLD = (
    "What quarantine gates hold back. key: the whole change of a failing key. row: the failing record of a topic, "
    "which counts as not yet known; or the failing event, pair or window of a view, not of one of versions "
    "(docs/quality.md)."
)
"""The description of the field `hold`."""


class Expectation(Model):
    """One gate: an expectation of Great Expectations with its parameters, what it looks at, and what a failure does."""

    type: Type
    kwargs: dict[str, Any] = Field(default_factory=dict)
    on_failure: Literal["stop", "quarantine", "warn"] = "stop"
    rows: Literal["change", "table"] = "change"

    @property
    def columns(self) -> list[str]:
        """The columns that the parameters name."""
        named = [self.kwargs.get(p) for p in ("column", "column_A", "column_B")]
        listed = self.kwargs.get("column_list")
        return [c for c in (*named, *(listed if isinstance(listed, list) else ())) if isinstance(c, str)]

    @property
    def beyond(self) -> bool:
        """Whether it looks at more than what changes in the table, so that it can fail though nothing does."""
        return self.type in _BEYOND

    @property
    def refers_to(self) -> str | None:
        """The other table that it looks into."""
        other = self.kwargs.get("table")
        return other if self.type == "expect_foreign_keys_to_be_found" and isinstance(other, str) else None


AGING = "expect_table_to_be_fresh"
"""The rule that can fail though nothing at all has happened."""

TIES = "expect_ties_to_be_ordered"
"""The rule that can fail though no row changes: the record that loses a tie changes none."""

_BEYOND = (
    AGING,
    TIES,
    "expect_offsets_to_be_conserved",
    "expect_share_of_records_to_be_at_most",
    "expect_share_of_unmatched_to_be_at_most",
)


def _as_expectation(item: object) -> object:
    """`{expect_x: {column: a}, on_failure: warn}` as the fields of an Expectation."""
    if not isinstance(item, dict) or "type" in item:
        return item
    names = [name for name in item if name not in OF_GATES]
    if len(names) != 1:
        found = f"a gate names one expectation, found {len(names)}: {', '.join(map(str, names)) or 'none'}"
        odd = [str(name) for name in names if not str(name).startswith(("expect_", "unexpected_"))]
        mend = (
            f"'{odd[0]}': {nearest(odd[0], OF_GATES)}" if odd else "write each in a list item of its own: - expect_..."
        )
        raise ValueError(f"{found}; {mend}")
    return {
        "type": names[0],
        "kwargs": item[names[0]] or {},
        **{name: item[name] for name in OF_GATES if name in item},
    }


OF_GATES = ("on_failure", "rows")
"""What stands beside an expectation, not among its parameters."""


def gate_schema() -> dict[str, Any]:
    """The JSON Schema of a gate as it is written."""
    return {
        "type": "object",
        "properties": {
            "on_failure": {
                "enum": ["stop", "quarantine", "warn"],
                "default": "stop",
                "description": "stop: nothing of the table is published. quarantine: the whole change of the failing "
                "keys is held back. warn: it is told.",
            },
            "rows": {
                "enum": ["change", "table"],
                "default": "change",
                "description": "What it looks at: the rows that a run would open, or the table as it would be.",
            },
        },
        "patternProperties": {"^(expect_[a-z0-9_]+|unexpected_rows_expectation)$": {"type": ["object", "null"]}},
        "additionalProperties": False,
    }


Gate = Annotated[Expectation, BeforeValidator(_as_expectation, json_schema_input_type=Any)]
