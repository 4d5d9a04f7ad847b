"""Which columns a contract marks as sensitive, and what is made of them: no report and no log shows their values."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from hindcast.contracts.model import Contract
from hindcast.contracts.parsing import find_columns
from hindcast.contracts.shapes import Shape, computed, shapes
from hindcast.contracts.view import View


def sensitive(contract: Contract) -> dict[str, frozenset[str]]:
    """The sensitive columns of every table of a checked contract: what is marked, and what is computed of it.

    `sensitive: true` marks all columns, keys too. A column of a view is sensitive if its expression names one that is;
    a view can mark more, none of its marks takes one back.
    """
    known = shapes(contract)
    found: dict[str, frozenset[str]] = {}
    for name, shape in known.items():
        it = contract.topics.get(name) or contract.inputs.get(name) or contract.views[name]
        marked = shape.columns if it.sensitive is True else it.sensitive or ()
        made = _made(contract.views[name], known, found) if name in contract.views else ()
        found[name] = frozenset([*marked, *made])
    return found


def discreet(contract: Contract, name: str, message: str) -> str:
    """What may be told of a failure in a table: the message, or only its error class where sensitive columns take part.

    >>> discreet(contract, "orders", "[CAST_INVALID_INPUT] The value 'ann@x.org' ...")
    'CAST_INVALID_INPUT (not told: the table has sensitive columns)'
    """
    found, view = sensitive(contract), contract.views.get(name)
    if not any(found[it] for it in (name, *(view.inputs if view else ()))):
        return message
    named = re.search(r"\[([A-Z][A-Z0-9_.]+)\]", message)
    return f"{named[1]} ({NOT_TOLD})" if named else NOT_TOLD


NOT_TOLD = "not told: the table has sensitive columns"


def _made(view: View, known: Mapping[str, Shape], found: Mapping[str, frozenset[str]]) -> Iterator[str]:
    """The columns of a view that name a sensitive one of its inputs."""
    for column, text in computed(view, known).items():
        for parts in find_columns(text):
            if parts[0] in found and parts[1:] and parts[1] in found[parts[0]]:
                yield column
