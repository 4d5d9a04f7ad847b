"""Avro schemas in files beside a contract: their content is part of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated

from pydantic import ValidationInfo, WithJsonSchema, model_validator

from hindcast.common import bounded_files
from hindcast.common.bounded_files import FileState
from hindcast.common.json_values import JsonValue
from hindcast.contract import bounds
from hindcast.contract.avro import SchemaError, parse_json, parse_schema
from hindcast.contract.types import ContractModel, ContractValue, format_value


class AvroFile(ContractModel):
    """An Avro schema in a file beside the contract. Its content is part of the contract."""

    file: str
    text: str

    @model_validator(mode="before")
    @classmethod
    def _read_text(cls, value: ContractValue, info: ValidationInfo) -> ContractValue:
        if isinstance(value, dict) and value.keys() == cls.model_fields.keys():
            return value
        if not isinstance(value, str):
            raise ValueError(  # noqa: TRY004  # pydantic would not catch a TypeError
                f"{format_value(value)} is not the name of a file; write for example orders.avsc"
            )
        folder = (info.context or {}).get("folder")
        if folder is None:
            raise ValueError(f"'{value}' is a file beside a contract, but this contract was not read from a file")
        if Path(value).name != value:
            raise ValueError(f"'{value}' is not the name of a file; put the schema beside the contract")
        path = Path(folder) / value
        record_named_file(path)
        try:
            text = bounds.read_text(path)
            schema = parse_json(text)
            _refuse_surrogates(schema)
            parse_schema(schema)
        except OSError as error:
            raise ValueError(f"'{value}' cannot be read: {error.strerror}; put the file beside the contract") from None
        except SchemaError as error:
            raise ValueError(f"'{value}' {error}; fix the schema") from None
        except bounded_files.ExcessError as error:
            raise ValueError(f"'{value}' {error}") from None
        except (ValueError, RecursionError) as error:
            raise ValueError(f"'{value}' is not JSON: {error}; fix the file") from None
        return {"file": value, "text": json.dumps(schema)}


@contextmanager
def record_named_files() -> Iterator[dict[Path, FileState]]:
    """Return a dictionary that gets each file that a contract names while the block reads it, also if it is not there.

    The values are the states of the files before they were read.
    """
    states: dict[Path, FileState] = {}
    token = _NAMED_FILES.set(states)
    try:
        yield states
    finally:
        _NAMED_FILES.reset(token)


def record_named_file(path: Path) -> None:
    """Record a file that a contract is about to be read with (`record_named_files`)."""
    if (states := _NAMED_FILES.get()) is not None:
        states.setdefault(path, bounded_files.find_state(path))


_NAMED_FILES: ContextVar[dict[Path, FileState] | None] = ContextVar("_NAMED_FILES", default=None)


def _refuse_surrogates(schema: JsonValue) -> None:
    r"""Raise SchemaError for an unpaired surrogate, as the escape \ud800 is in JSON without the other half."""
    try:
        json.dumps(schema, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        half = error.object[error.start]
        raise SchemaError(f"has U+{ord(half):04X} in a text, which is an unpaired surrogate") from None


SchemaFile = Annotated[AvroFile, WithJsonSchema({"type": "string", "examples": ["orders.avsc"]})]
