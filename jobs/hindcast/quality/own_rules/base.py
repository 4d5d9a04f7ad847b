"""Base classes of rules: they check the parameters and build the query."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import ClassVar, Literal, TypeAlias, TypeGuard, TypeVar

from great_expectations.compatibility import pydantic
from great_expectations.core import ExpectationValidationResult
from great_expectations.execution_engine.execution_engine import ExecutionEngine
from great_expectations.expectations.core.unexpected_rows_expectation import UnexpectedRowsExpectation
from great_expectations.expectations.expectation import BatchExpectation
from great_expectations.validator.computed_metric import MetricValue
from great_expectations.validator.metric_configuration import MetricConfiguration
from great_expectations.validator.validator import ValidationDependencies

from hindcast.common.errors import suggest_nearest
from hindcast.common.json_values import JsonValue
from hindcast.contract.types import parse_duration
from hindcast.quality.metrics import RowsWhereCount

RECORD_CONDITIONS = {
    "late": "`timestamp` < streamTime",
    "expired": "fate = 'expired'",
    "quarantined": "coalesce(fate NOT IN ('accepted', 'no_change'), true)",
}
"""SQL conditions of the records that `ExpectShareOfRecordsToBeAtMost` can count, by the value of `which`."""


Configuration: TypeAlias = dict[str, JsonValue]
Value = TypeVar("Value")


class GateRule(BatchExpectation):
    """A rule whose query is built from its other parameters, which are checked when it is constructed."""

    row_set: ClassVar[Literal["change", "near", "keys", "plane", "table", "records", "unpublished", "ties", "events"]]
    row_level: ClassVar[bool]

    @pydantic.root_validator(pre=True)
    @classmethod
    def _refuse_unknown(cls, values: dict[str, Value]) -> dict[str, Value]:
        own = cls.__fields__.keys() - BatchExpectation.__fields__.keys() - set(cls.success_keys)
        for name in sorted(values.keys() - cls.__fields__.keys()):
            raise ValueError(f"no parameter '{name}'; {suggest_nearest(name, own)}")
        return values

    @pydantic.validator("*", pre=True)
    @classmethod
    def _refuse_misfit(cls, value: JsonValue, field: pydantic.fields.ModelField) -> JsonValue:
        if field.name in _PARAMETERS and not (value is None and field.allow_none):
            fits, remedy = _PARAMETERS[field.name]
            if not fits(value):
                raise ValueError(f"{field.name} is {value!r}; write {remedy}")
        return value

    @pydantic.root_validator(skip_on_failure=True)
    @classmethod
    def _fill_query(cls, values: dict[str, Value]) -> dict[str, Value | str]:
        [query] = cls.success_keys
        built = cls.construct(None, **values).build_query()
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

    def get_validation_dependencies(
        self, execution_engine: ExecutionEngine[str] | None = None, runtime_configuration: Configuration | None = None
    ) -> ValidationDependencies:
        needed = super().get_validation_dependencies(execution_engine, runtime_configuration)
        if needed.result_format["result_format"] != "COMPLETE":
            needed.remove_metric_configuration("unexpected_rows_query.table")
        return needed

    def _validate(
        self,
        metrics: dict[str, MetricValue],
        runtime_configuration: Configuration | None = None,
        execution_engine: ExecutionEngine[str] | None = None,
    ) -> ExpectationValidationResult | dict[str, JsonValue]:
        metrics = {"unexpected_rows_query.table": None, **metrics}
        return super()._validate(metrics, runtime_configuration, execution_engine)


class ConditionRule(RowRule):
    """A rule about each row alone: GX counts the rows that meet its condition together with its other counts."""

    def build_query(self) -> str:
        return f"SELECT * FROM {{batch}} WHERE {self.failing_condition()}"

    @abstractmethod
    def failing_condition(self) -> str:
        """Return the SQL condition of a row that fails, with its braces doubled."""

    def get_validation_dependencies(
        self, execution_engine: ExecutionEngine[str] | None = None, runtime_configuration: Configuration | None = None
    ) -> ValidationDependencies:
        needed = super().get_validation_dependencies(execution_engine, runtime_configuration)
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

    def _validate(
        self,
        metrics: dict[str, MetricValue],
        runtime_configuration: Configuration | None = None,  # noqa: ARG002  # as GX wants it
        execution_engine: ExecutionEngine[str] | None = None,  # noqa: ARG002  # as GX wants it
    ) -> dict[str, JsonValue]:
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


def _is_parsed_above(parse: Callable[[str], int], above: float) -> Callable[[JsonValue], bool]:
    def fits(value: JsonValue) -> bool:
        try:
            return isinstance(value, str) and parse(value) > above
        except ValueError:
            return False

    return fits


def _is_list_of(fits: Callable[[JsonValue], bool], least: int = 0) -> Callable[[JsonValue], bool]:
    return lambda value: isinstance(value, list) and len(value) >= least and all(map(fits, value))


def _is_name(value: JsonValue) -> bool:
    return isinstance(value, str) and value != "" and "${" not in value  # Spark would replace it by a setting


def _is_number(value: JsonValue) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0


def _is_range(value: JsonValue) -> TypeGuard[Sequence[int]]:
    if not isinstance(value, list | tuple):
        return False
    whole = [at for at in value if isinstance(at, int) and _is_number(at)]
    return len(whole) == len(value) == 2 and whole[0] <= whole[1]


def _is_plan(value: JsonValue) -> bool:
    """Return whether a value maps partitions (strings in JSON) to ascending ranges of whole numbers."""
    if not isinstance(value, dict) or not all(isinstance(p, int | str) and str(p).isdecimal() for p in value):
        return False
    return len(set(map(int, value))) == len(value) and all(map(_is_ascending, value.values()))


def _is_ascending(value: JsonValue) -> bool:
    ranges = [span for span in value if _is_range(span)] if isinstance(value, list) else []
    return isinstance(value, list) and len(ranges) == len(value) and all(a[1] <= b[0] for a, b in pairwise(ranges))


_PARAMETERS: dict[str, tuple[Callable[[JsonValue], bool], str]] = {
    **dict.fromkeys(
        ("start", "end", "finish", "column", "table", "found_in", "kind", "closing"), (_is_name, "a name, without ${")
    ),
    **dict.fromkeys(
        ("key", "column_list", "found_key", "closing_by"), (_is_list_of(_is_name, 1), "a list of names, without ${")
    ),
    **dict.fromkeys(("content", "maps"), (_is_list_of(_is_name), "a list of names, without ${")),
    "closed": (_is_list_of(lambda value: isinstance(value, list)), "a list of periods: [[from, to]]"),
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
