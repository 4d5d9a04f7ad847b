"""Every error that Hindcast raises on purpose.

    HindcastError
    ├── SettingsError      an invalid environment variable
    ├── PlatformError      Java, a port, a process, a disk
    ├── ContractError      an invalid contract: file and line
    ├── TopicError         a broker or a topic: topic, partition, offset
    │   └── AccessError    Kafka or the schema registry refuses us: TLS, credentials, permissions
    ├── RecordError        records that do not decode: topic, partition, offset, key
    ├── TableError         a table that is not ours, or has an unexpected schema
    ├── RunError           a plan that cannot be made or finished, counts that do not add up
    │   ├── RequestError   a run was asked to do something impossible
    │   └── BusyError      another run of the pipeline is under way: wait for it
    ├── GateError          a gate that stopped a table
    └── QueryError         a question that has no answer: unknown table, key or moment
        └── UnknownError   it names something unknown: a pipeline, a table, a run, a key

An error says what was found, where, and what to do.
"""

from __future__ import annotations

import bisect
import difflib
import re
from collections.abc import Iterable

_CONTROL_CHARACTERS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that control a terminal, change the direction of text, or are not text; not line breaks and tabs."""

LINE_BREAKS = "\n\t"
"""Control characters that are allowed in a message, but not in a text that must stay on one line."""


def escape_controls(text: str, more: str = "") -> str:
    r"""Return a text with its control characters, and those in `more`, escaped.

    A byte of a file name that is not UTF-8 is shown as `\xNN`.

    >>> escape_controls("caf\udce9 \x1b[31m"), escape_controls("two\nlines", "\n")
    ('caf\\xe9 \\x1b[31m', 'two\\nlines')
    """
    escaped = _CONTROL_CHARACTERS.sub(lambda match: _escape_character(match[0]), text)
    return "".join(_escape_character(c) if c in more else c for c in escaped) if more else escaped


def show_briefly(text: str, most: int = 200) -> str:
    r"""Return a text of others, as a record's value, as a part of a sentence: on its line, and cut where it is long.

    >>> show_briefly("a\n\x1b[31mb"), show_briefly("x" * 300, 3)
    ('a\\n\\x1b[31mb', 'xxx... (300 characters)')
    """
    cut = text if len(text) <= most else f"{text[:most]}... ({len(text):,} characters)"
    return escape_controls(cut, LINE_BREAKS)


def _escape_character(character: str) -> str:
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"
    return character.encode("unicode_escape").decode()


class HindcastError(Exception):
    """An error with what was found, where (optional), and how to fix it (optional).

    Its texts are safe to show anywhere: control characters are escaped.
    """

    def __init__(self, found: str, *, where: str = "", fix: str = "") -> None:
        self.found, self.fix = escape_controls(found), escape_controls(fix)
        self.where = escape_controls(where, LINE_BREAKS)
        super().__init__(self.found, self.where, self.fix)

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where else ""
        fix = f"\n  what to do: {self.fix}" if self.fix else ""
        return f"{place}{self.found}{fix}"


class SettingsError(HindcastError):
    """An environment variable has an invalid value."""


class PlatformError(HindcastError):
    """Java, a port, a process or a disk is missing or does not work."""


class ContractError(HindcastError):
    """A contract is invalid; `where` is its file and line."""


class TopicError(HindcastError):
    """A broker cannot be reached, or a topic is not as the contract says."""


class AccessError(TopicError):
    """Kafka or the schema registry refuses us: TLS certificate, credentials or permissions."""


class RecordError(HindcastError):
    """Records cannot be decoded; `where` is topic, partition and offset of the first."""


class TableError(HindcastError):
    """A table is not ours, or has another schema than the contract says."""


class RunError(HindcastError):
    """A plan cannot be made or finished, or counts do not add up."""


class RequestError(RunError):
    """A run was asked to do something that is impossible, now and later."""


class BusyError(RunError):
    """Another run of the pipeline has not ended; try again when it has."""


class GateError(HindcastError):
    """A gate stopped a table; nothing of it was published."""


class QueryError(HindcastError):
    """A question about an unknown table, key or moment."""


class UnknownError(QueryError):
    """A question that names an unknown pipeline, table, run or key."""


FINAL_ERRORS = (AccessError, RequestError, ContractError, GateError, RecordError, SettingsError, TableError)
"""Errors that a retry would raise again."""


def suggest_nearest(name: str, known: Iterable[str]) -> str:
    """Return a hint for a mistyped name, ignoring case: `did you mean 'menu'? known here: menu, orders`.

    With more than `_MAX_LISTED` known names the hint lists only the nearest.
    """
    names = sorted(known, key=_natural_order)
    plain = {known_name.lower(): known_name for known_name in names}
    written = name.lower()[:_MAX_LENGTH]
    compared: Iterable[str] = plain
    if len(plain) > _MAX_COMPARED:  # comparing is slow: names that sort close are near enough
        lower = sorted(plain)
        at = max(bisect.bisect(lower, written) - _MAX_COMPARED // 2, 0)
        compared = lower[at : at + _MAX_COMPARED]
    close = difflib.get_close_matches(written, compared, n=1)
    hint = f"did you mean '{plain[close[0]]}'? " if close else ""
    if len(names) > _MAX_LISTED:
        near = [plain[match] for match in difflib.get_close_matches(written, compared, n=_NEAREST_SHOWN, cutoff=0)]
        return f"{hint}nearest of the {len(names)} known here: {', '.join(near)}"
    return f"{hint}known here: {', '.join(names) or 'none'}"


_MAX_LISTED, _NEAREST_SHOWN, _MAX_COMPARED, _MAX_LENGTH = 30, 5, 200, 100


def _natural_order(name: str) -> list[tuple[int, str]]:
    """Return the sort key of a name: numbers in it count as numbers, so that 2 comes before 10."""
    return [(len(part.lstrip("0")) if part.isdigit() else 0, part) for part in re.split(r"(\d+)", name)]


_PYTHON_ERROR = re.compile(r"[\w.]+(?:Error|Exception|Exit|Interrupt)\b")


def describe_cause(failure: Exception) -> str:
    """Return the first informative line of a failure's text, which may be the JVM's or a Python worker's."""
    lines = [line.removeprefix(": ") for line in str(failure).strip().splitlines()]
    cause = next(line for line in lines if not line.startswith("An error occurred while calling"))
    if "from the Python worker" in cause:  # the error is the last line of the traceback that follows
        cause = next((line for line in reversed(lines) if _PYTHON_ERROR.match(line)), cause)
    return cause
