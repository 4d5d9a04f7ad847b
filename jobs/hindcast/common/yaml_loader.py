"""Safe YAML as contracts and targets are written in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import yaml

if TYPE_CHECKING:
    _Base = yaml.SafeLoader
else:
    _Base = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class PlainLoader(_Base):
    """Safe YAML where only `true` and `false` are booleans (YAML 1.2): `on:` stays the name it is."""


PlainLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:bool" or first in "tTfF"]
    for first, resolvers in _Base.yaml_implicit_resolvers.items()
}
