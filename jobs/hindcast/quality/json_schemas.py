"""The metric behind `expect_column_values_to_match_json_schema`: it reads no file and asks no server.

Great Expectations' own metric leaves that to jsonschema, which opens whatever address `$ref` names, with the rights of
the Spark server; and it fails altogether on a value that is not JSON, or that jsonschema cannot judge: a number too
large for Python (1e400), too many lists in each other. Here such a value does not match. NaN and Infinity are not JSON.

A pattern can take for ever on a value that is made for it: the gate fails to run (TimeoutError) after
`time_limits.MAX_SECONDS`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from urllib.parse import urldefrag, urljoin

import jsonschema  # type: ignore[import-untyped]  # it has no types
from great_expectations.execution_engine.sparkdf_execution_engine import SparkDFExecutionEngine
from great_expectations.expectations.metrics.map_metric_provider.column_condition_partial import (
    column_condition_partial,
)
from great_expectations.expectations.metrics.map_metric_provider.column_map_metric_provider import (
    ColumnMapMetricProvider,
)
from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped]  # it has no types
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType

from hindcast.common.json_values import JsonObject, JsonValue
from hindcast.common.time_limits import limit_time


class ColumnValuesMatchJsonSchema(ColumnMapMetricProvider):
    """Replaces Great Expectations' metric of this name, in Spark."""

    condition_metric_name = "column_values.match_json_schema"
    condition_value_keys = ("json_schema",)

    @column_condition_partial(engine=SparkDFExecutionEngine)
    def _spark(cls, column: Column, json_schema: JsonObject, **_others: JsonValue) -> Column:  # noqa: N805  # as GX wants it
        schema = json.loads(json.dumps(json_schema, default=str))
        jsonschema.validators.validator_for(schema).check_schema(schema)
        validators: list[jsonschema.Validator] = []

        def refuse_constant(name: str) -> None:
            raise ValueError(f"{name} is not JSON")

        # A function in a function goes to Spark's workers by value: they need not have this package.
        def is_valid(text: str) -> bool:
            if not validators:
                validators.append(jsonschema.validators.validator_for(schema)(schema, registry=REGISTRY))
            try:
                return bool(validators[0].is_valid(json.loads(text, parse_constant=refuse_constant)))
            except (ArithmeticError, ValueError, RecursionError):  # also numbers and depths beyond Python's
                return False

        in_time = limit_time(is_valid)
        return F.udf(lambda text: text is not None and in_time(text), BooleanType())(column)


def find_outside_reference(schema: JsonValue) -> str | None:
    """Return the first reference of a JSON Schema to what is neither in it nor a schema of JSON Schema itself.

    >>> find_outside_reference({"$id": "https://a.org/b", "items": {"$ref": "c"}, "$defs": {"c": {"$id": "c"}}})
    >>> find_outside_reference({"items": {"$ref": "file:///etc/passwd"}})
    'file:///etc/passwd'
    """
    base = str(schema.get("$id", "")) if isinstance(schema, dict) else ""
    parts = list(_walk(schema))
    ids = (part.get(name) for part in parts for name in ("$id", "id"))
    here = {_place(base, part_id) for part_id in ids if isinstance(part_id, str)}
    for part in parts:
        for name in ("$ref", "$dynamicRef", "$recursiveRef"):
            reference = part.get(name)
            if isinstance(reference, str) and not reference.startswith("#"):
                place = _place(base, reference)
                if place not in here and place not in REGISTRY:
                    return reference
    return None


def _place(base: str, reference: str) -> str:
    try:
        return urldefrag(urljoin(base, reference))[0]
    except ValueError:
        return reference


def _walk(schema: JsonValue) -> Iterator[JsonObject]:
    """Yield each object in a JSON value, the outer ones first."""
    plan = [schema]
    while plan:
        match plan.pop(0):
            case dict() as one:
                yield one
                plan += one.values()
            case list() as some:
                plan += some
