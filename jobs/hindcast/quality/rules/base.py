"""What rules are made of: their parameters, which are checked, and the query that these make."""

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

from hindcast.contracts.types import duration
from hindcast.errors import nearest
from hindcast.quality.metrics import RowsWhere

WHICH = {
    "late": "`timestamp` < streamTime",
    "expired": "fate = 'expired'",
    "quarantined": "coalesce(fate NOT IN ('accepted', 'no_change'), true)",
}
"""Of which of the records that were read a share can be."""


class Rule(BatchExpectation):
    """A rule whose query is made of its other parameters, which are checked when it is constructed."""

    about: ClassVar[Literal["change", "near", "keys", "plane", "table", "records", "unpublished", "ties", "events"]]
    row_level: ClassVar[bool]

    @pydantic.root_validator(pre=True)
    @classmethod
    def _known(cls, values: dict[str, Any]) -> dict[str, Any]:
        own = cls.__fields__.keys() - BatchExpectation.__fields__.keys() - set(cls.success_keys)
        for name in sorted(values.keys() - cls.__fields__.keys()):
            raise ValueError(f"no parameter '{name}'; {nearest(name, own)}")
        return values

    @pydantic.validator("*", pre=True)
    @classmethod
    def _fits(cls, value: Any, field: pydantic.fields.ModelField) -> Any:
        if field.name in _PARAMETERS and not (value is None and field.allow_none):
            fits, would_do = _PARAMETERS[field.name]
            if not fits(value):
                raise ValueError(f"{field.name} is {value!r}; write {would_do}")
        return value

    @pydantic.root_validator(skip_on_failure=True)
    @classmethod
    def _asked(cls, values: dict[str, Any]) -> dict[str, Any]:
        [query] = cls.success_keys
        made = cls.construct(**values).sql()
        if values[query] not in ("", made):
            raise ValueError(f"{query} is not what the other parameters make of it; leave it out")
        return {**values, query: made}

    @abstractmethod
    def sql(self) -> str:
        """The query over `{batch}`; ValueError where parameters do not go together."""


class RowRule(Rule, UnexpectedRowsExpectation):
    """Its query gives the rows that fail. GX counts them, and fetches some only for COMPLETE."""

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
    """Of each row alone: its `condition` tells the rows that fail, and is counted with what else is counted of them."""

    def sql(self) -> str:
        return f"SELECT * FROM {{batch}} WHERE {self.condition()}"

    @abstractmethod
    def condition(self) -> str:
        """What is true of a row that fails, its braces doubled."""

    def get_validation_dependencies(self, *args: Any, **kwargs: Any) -> Any:
        needed = super().get_validation_dependencies(*args, **kwargs)
        count = "unexpected_rows_query.row_count"
        rows = needed.metric_configurations[count].metric_domain_kwargs
        condition = {"condition": self.condition().format()}
        needed.set_metric_configuration(count, MetricConfiguration(RowsWhere.metric_name, rows, condition))
        return needed


class ShareRule(Rule):
    """Its query gives one row: `observed`, `fine` and `checked`."""

    query: str = ""
    row_level = False
    metric_dependencies = ("query.table",)
    success_keys = ("query",)

    def _validate(self, metrics: dict[str, Any], *_args: Any, **_kwargs: Any) -> dict[str, Any]:
        [answer] = metrics["query.table"]
        success = answer["fine"] is True and answer["checked"] > 0
        return {"success": success, "result": {"observed_value": answer["observed"], "checked": answer["checked"]}}

    @abstractmethod
    def found(self, observed: float | None, checked: int) -> str:
        """What is told of rows that fail."""


def quoted(name: str) -> str:
    """A column or view in a query that GX formats: its braces would be places for something else."""
    doubled = name.replace("`", "``").replace("{", "{{").replace("}", "}}")
    return f"`{doubled}`"


def listed(names: list[str]) -> str:
    """Names as SQL, with commas between."""
    return ", ".join(map(quoted, names))


def moment(text: str) -> int:
    """Microseconds since 1970."""
    told = datetime.fromisoformat(text)
    return (told.replace(tzinfo=told.tzinfo or UTC) - datetime.fromtimestamp(0, UTC)) // timedelta(microseconds=1)


def length(text: str) -> int:
    """Microseconds."""
    return duration(text) // timedelta(microseconds=1)


def _reads(read: Callable[[str], int], above: float) -> Callable[[Any], bool]:
    def reads(value: Any) -> bool:
        try:
            return isinstance(value, str) and read(value) > above
        except ValueError:
            return False

    return reads


def _are(fits: Callable[[Any], bool], least: int = 0) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and len(value) >= least and all(map(fits, value))


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and value != "" and "${" not in value  # Spark would put a setting in its place


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0


def _is_range(value: Any) -> bool:
    whole = isinstance(value, list | tuple) and all(_is_number(at) and isinstance(at, int) for at in value)
    return whole and len(value) == 2 and value[0] <= value[1]


def _is_plan(value: Any) -> bool:
    """Ranges of whole numbers, of one partition one after the other; in JSON the partitions are strings."""
    partitions = isinstance(value, dict) and all(isinstance(p, int | str) and str(p).isdecimal() for p in value)
    ranges = partitions and len(set(map(int, value))) == len(value) and all(map(_are(_is_range), value.values()))
    return ranges and all(a[1] <= b[0] for of_one in value.values() for a, b in pairwise(of_one))


_PARAMETERS: dict[str, tuple[Callable[[Any], bool], str]] = {
    **dict.fromkeys(("start", "end", "finish", "column", "table", "found_in"), (_is_name, "a name, without ${")),
    **dict.fromkeys(("key", "column_list", "found_key"), (_are(_is_name, 1), "a list of names, without ${")),
    **dict.fromkeys(("within", "shorter_than"), (_reads(length, 0), "a duration: 30 days, 90 minutes, 500 ms")),
    **dict.fromkeys(("until", "known_at"), (_reads(moment, -math.inf), "a moment: 2026-01-01T00:00:00+00:00")),
    **dict.fromkeys(("share", "at_most"), (lambda value: _is_number(value) and value <= 1, "a number from 0 to 1")),
    **dict.fromkeys(("also_replaced", "whole_period"), (lambda value: isinstance(value, bool), "true or false")),
    "which": (lambda value: value in list(WHICH), f"one of {', '.join(WHICH)}"),
    "runs": (lambda value: _is_number(value) and isinstance(value, int) and value > 0, "a whole number above 0"),
    "factor": (lambda value: _is_number(value) and value > 1, "a number above 1"),
    "earlier": (_are(_is_number), "a list of numbers, the newest last"),
    "planned": (_is_plan, "for each partition its ranges in order: {0: [[0, 10], [12, 20]]}"),
}
"""Of a parameter, by its name: whether a value does, and what would do."""
