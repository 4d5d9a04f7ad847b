"""Read docker-compose.yaml: its variables replaced, its services in the order in which they may start."""

from __future__ import annotations

import base64
import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

Service = dict[str, Any]
"""A service as the file has it."""


def replace_variables(text: str, variables: Mapping[str, str]) -> str:
    """Return a text of the file as Compose has it: variables replaced, `$$` a dollar.

    Raise KeyError for a variable that is required and not given.
    """

    def value(found: re.Match[str]) -> str:
        if found[0] == "$$":
            return "$"
        name, default = found[1], found[2]
        return variables[name] if default is None else variables.get(name, default)

    return re.sub(r"\$\$|\$\{(\w+)(?::\?[^}]*|:-([^}]*))\}", value, text)


def list_required(text: str) -> list[str]:
    """Return the variables that .env must have."""
    return sorted(set(re.findall(r"(?<!\$)\$\{(\w+):\?", text)))


def make_secrets(text: str) -> dict[str, str]:
    """Return a value for each variable that .env must have, as the file's first lines make them."""
    made = {name: secrets.token_hex(32) for name in list_required(text)}
    return made | {"AIRFLOW_FERNET_KEY": base64.urlsafe_b64encode(secrets.token_bytes(32)).decode()}


def load_services(file: Path, variables: Mapping[str, str]) -> dict[str, Service]:
    """Return the services of a file by name, each after those that it depends on."""
    declared: dict[str, Service] = yaml.safe_load(file.read_text(encoding="utf-8"))["services"]
    ordered: dict[str, Service] = {}

    def add(name: str) -> None:
        for other in declared[name].get("depends_on", {}):
            if other not in ordered:
                add(other)
        ordered[name] = _replace_all(declared[name], variables)

    for name in declared:
        if name not in ordered:
            add(name)
    return ordered


def _replace_all(value: Any, variables: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {name: _replace_all(it, variables) for name, it in value.items()}
    if isinstance(value, list):
        return [_replace_all(it, variables) for it in value]
    return replace_variables(value, variables) if isinstance(value, str) else value
