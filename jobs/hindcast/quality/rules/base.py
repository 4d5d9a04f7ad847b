"""Base classes of rules: they check the parameters and build the query."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any, ClassVar, Literal

from great_expectations.compatibility import pydantic
from great_expectations.expectations.core.unexpected_rows_expectation import UnexpectedRowsExpectation
from great_expectations.expectations.expectation import BatchExpectation
from great_expectations.validator.metric_configuration import MetricConfiguration

from hindcast.common.errors import suggest_nearest
from hindcast.contract.types import parse_duration
from hindcast.quality.metrics import RowsWhereCount

RECORD_CONDITIONS = {
    "late": "`timestamp` < streamTime",
    "expired": "fate = 'expired'",
    "quarantined": "coalesce(fate NOT IN ('accepted', 'no_change'), true)",
}
"""SQL conditions of the records that `ExpectShareOfRecordsToBeAtMost` can count, by the value of `which`."""


class GateRule(BatchExpectation):
    """A rule whose query is built from its other parameters, which are checked when it is constructed."""

    row_set: ClassVar[Literal["change", "near", "keys", "plane", "table", "records", "unpublished", "ties", "events"]]
    row_level: ClassVar[bool]

    @pydantic.root_validator(pre=True)
    @classmethod
    def _refuse_unknown(cls, values: dict[str, Any]) -> dict[str, Any]:
        own = cls.__fields__.keys() - BatchExpectation.__fields__.keys() - set(cls.success_keys)
        for name in sorted(values.keys() - cls.__fields__.keys()):
            raise ValueError(f"no parameter '{name}'; {suggest_nearest(name, own)}")
        return values

    @pydantic.validator("*", pre=True)
    @classmethod
    def _refuse_misfit(cls, value: Any, field: pydantic.fields.ModelField) -> Any:
        if field.name in _PARAMETERS and not (value is None and field.allow_none):
            fits, remedy = _PARAMETERS[field.name]
            if not fits(value):
                raise ValueError(f"{field.name} is {value!r}; write {remedy}")
        return value

    @pydantic.root_validator(skip_on_failure=True)
    @classmethod
    def _fill_query(cls, values: dict[str, Any]) -> dict[str, Any]:
        [query] = cls.success_keys
        built = cls.construct(**values).build_query()
        if values[query] not in ("", built):
            raise ValueError(f"{query} does not match the other parameters; leave it out")
        return {**values, query: built}

    @abstractmethod
    def build_query(self) -> str:
        """Return the SQL query over `{batch}`; ValueError if the parameters do not go together."""


class RowRule(GateRule, UnexpectedRowsExpectation):
    """A rule whose query returns the rows that fail. GX counts them, and fetches some only for COMPLETE."""

    unexpected_rows_query: str = ""
    row_level = True

    def get_validation_dependencies(self, *args: Any, **kwargs: Any) -> Any:
        needed = super().get_validation_dependencies(*args, **kwargs)
        if needed.result_format["result_format"] != "COMPLETE":
            needed.remove_metric_configuration("unexpected_rows_query.table")
        return needed

    def _validate(self, metrics: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        return super()._validate({"unexpected_rows_query.table": None, **metrics}, *args, **kwargs)


class ConditionRule(RowRule):
    """A rule about each row alone: GX counts the rows that meet its condition together with its other counts."""

    def build_query(self) -> str:
        return f"SELECT * FROM {{batch}} WHERE {self.failing_condition()}"

    @abstractmethod
    def failing_condition(self) -> str:
        """Return the SQL condition of a row that fails, with its braces doubled."""

    def get_validation_dependencies(self, *args: Any, **kwargs: Any) -> Any:
        needed = super().get_validation_dependencies(*args, **kwargs)
        count = "unexpected_rows_query.row_count"
        rows = needed.metric_configurations[count].metric_domain_kwargs
        condition = {"condition": self.failing_condition().format()}
        needed.set_metric_configuration(count, MetricConfiguration(RowsWhereCount.metric_name, rows, condition))
        return needed


class ShareRule(GateRule):
    """A rule whose query returns one row: `observed`, `fine` and `checked`."""

    query: str = ""
    row_level = False
    metric_dependencies = ("query.table",)
    success_keys = ("query",)

    def _validate(self, metrics: dict[str, Any], *_args: Any, **_kwargs: Any) -> dict[str, Any]:
        [answer] = metrics["query.table"]
        success = answer["fine"] is True and answer["checked"] > 0
        return {"success": success, "result": {"observed_value": answer["observed"], "checked": answer["checked"]}}

    @abstractmethod
    def describe_failure(self, observed: float | None, checked: int) -> str:
        """Return what is wrong, for people."""


def quote_name(name: str) -> str:
    """Return a column or view as SQL, quoted, with its braces doubled because GX formats the query."""
    doubled = name.replace("`", "``").replace("{", "{{").replace("}", "}}")
    return f"`{doubled}`"


def quote_names(names: list[str]) -> str:
    """Return names as SQL, quoted and separated by commas."""
    return ", ".join(map(quote_name, names))


def parse_micros(text: str) -> int:
    """Return a moment (ISO 8601, UTC if it has no zone) as microseconds since 1970."""
    moment = datetime.fromisoformat(text)
    return (moment.replace(tzinfo=moment.tzinfo or UTC) - datetime.fromtimestamp(0, UTC)) // timedelta(microseconds=1)


def parse_length(text: str) -> int:
    """Return a duration (`90 minutes`) in microseconds."""
    return parse_duration(text) // timedelta(microseconds=1)


def _is_parsed_above(parse: Callable[[str], int], above: float) -> Callable[[Any], bool]:
    def fits(value: Any) -> bool:
        try:
            return isinstance(value, str) and parse(value) > above
        except ValueError:
            return False

    return fits


def _is_list_of(fits: Callable[[Any], bool], least: int = 0) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and len(value) >= least and all(map(fits, value))


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and value != "" and "${" not in value  # Spark would replace it by a setting


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0


def _is_range(value: Any) -> bool:
    whole = isinstance(value, list | tuple) and all(_is_number(at) and isinstance(at, int) for at in value)
    return whole and len(value) == 2 and value[0] <= value[1]


def _is_plan(value: Any) -> bool:
    """Return whether a value maps partitions (strings in JSON) to ascending ranges of whole numbers."""
    partitions = isinstance(value, dict) and all(isinstance(p, int | str) and str(p).isdecimal() for p in value)
    ranges = partitions and len(set(map(int, value))) == len(value) and all(map(_is_list_of(_is_range), value.values()))
    return ranges and all(a[1] <= b[0] for spans in value.values() for a, b in pairwise(spans))


_PARAMETERS: dict[str, tuple[Callable[[Any], bool], str]] = {
    **dict.fromkeys(("start", "end", "finish", "column", "table", "found_in"), (_is_name, "a name, without ${")),
    **dict.fromkeys(("key", "column_list", "found_key"), (_is_list_of(_is_name, 1), "a list of names, without ${")),
    **dict.fromkeys(
        ("within", "shorter_than"), (_is_parsed_above(parse_length, 0), "a duration: 30 days, 90 minutes, 500 ms")
    ),
    **dict.fromkeys(
        ("until", "known_at"), (_is_parsed_above(parse_micros, -math.inf), "a moment: 2026-01-01T00:00:00+00:00")
    ),
    **dict.fromkeys(("share", "at_most"), (lambda value: _is_number(value) and value <= 1, "a number from 0 to 1")),
    **dict.fromkeys(("also_replaced", "whole_period"), (lambda value: isinstance(value, bool), "true or false")),
    "which": (lambda value: value in list(RECORD_CONDITIONS), f"one of {', '.join(RECORD_CONDITIONS)}"),
    "runs": (lambda value: _is_number(value) and isinstance(value, int) and value > 0, "a whole number above 0"),
    "factor": (lambda value: _is_number(value) and value > 1, "a number above 1"),
    "earlier": (_is_list_of(_is_number), "a list of numbers, the newest last"),
    "planned": (_is_plan, "for each partition its ranges in order: {0: [[0, 10], [12, 20]]}"),
}
"""By the name of a parameter: a predicate that its values must fulfil, and what to write instead."""
