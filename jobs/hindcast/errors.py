"""Every error that Hindcast raises on purpose.

    HindcastError
    ├── SettingsError      an environment variable that makes no sense
    ├── PlatformError      Java, a port, a process, a disk
    ├── ContractError      a contract that cannot mean anything: file and line
    ├── TopicError         a broker or a topic: topic, partition, offset
    │   └── AccessError    Kafka or the schema registry refuses us: TLS, who we are, what we may
    ├── RecordError        records that do not decode: topic, partition, offset, key
    ├── TableError         a table that is not ours, or not of the expected form
    ├── RunError           plans, and runs that do not add up
    │   ├── AskedError     what a run was asked to do makes no sense
    │   └── BusyError      another run of the pipeline is under way: wait for it
    ├── GateError          a gate that stopped a table
    └── QueryError         a question that has no answer: unknown table, key or moment
        └── UnknownError   it names what is not there: a pipeline, a table, a run, a key

An error says what was found, where, and what to do.
"""

from __future__ import annotations

import bisect
import difflib
import re
from collections.abc import Iterable

_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that steer a terminal, turn the direction of what is read, or are no text: not line breaks and tabs."""


BREAKS = "\n\t"
"""Control characters that may stand in a message, and not in what must stay on its line."""


def escape_controls(text: str, more: str = "") -> str:
    r"""Return a text with its control characters, and those in `more`, as escapes.

    A byte of a file's name that is not UTF-8 is shown as itself.

    >>> escape_controls("caf\udce9 \x1b[31m"), escape_controls("two\nlines", "\n")
    ('caf\\xe9 \\x1b[31m', 'two\\nlines')
    """
    escaped = _CONTROLS.sub(lambda match: _escape(match[0]), text)
    return "".join(_escape(one) if one in more else one for one in escaped) if more else escaped


def show_briefly(text: str, most: int = 200) -> str:
    r"""Return a text of others, as a record's value, as a part of a sentence: on its line, and cut where it is long.

    >>> show_briefly("a\n\x1b[31mb"), show_briefly("x" * 300, 3)
    ('a\\n\\x1b[31mb', 'xxx... (300 characters)')
    """
    cut = text if len(text) <= most else f"{text[:most]}... ({len(text):,} characters)"
    return escape_controls(cut, BREAKS)


def _escape(character: str) -> str:
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"
    return character.encode("unicode_escape").decode()


class HindcastError(Exception):
    """What was found, where (optional), and what to do about it (optional).

    Its texts can be shown anywhere: control characters in them are escaped.
    """

    def __init__(self, found: str, *, where: str = "", mend: str = "") -> None:
        self.found, self.mend = escape_controls(found), escape_controls(mend)
        self.where = escape_controls(where, BREAKS)
        super().__init__(self.found, self.where, self.mend)

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where else ""
        mend = f"\n  what to do: {self.mend}" if self.mend else ""
        return f"{place}{self.found}{mend}"


class SettingsError(HindcastError):
    """An environment variable that makes no sense."""


class PlatformError(HindcastError):
    """Java, a port, a process or a disk is not as it must be."""


class ContractError(HindcastError):
    """A contract that cannot mean anything; `where` is its file and line."""


class TopicError(HindcastError):
    """A broker that cannot be reached, or a topic that is not as the contract says."""


class AccessError(TopicError):
    """Kafka or the schema registry refuses us: a certificate, who we are, or what we may do."""


class RecordError(HindcastError):
    """Records that do not decode; `where` is topic, partition and offset of the first."""


class TableError(HindcastError):
    """A table that is not ours, or that has another form than the contract gives it."""


class RunError(HindcastError):
    """A plan that cannot be made or finished, or counts that do not add up."""


class AskedError(RunError):
    """What a run was asked to do makes no sense, now or later."""


class BusyError(RunError):
    """Another run of the pipeline has not ended; what was asked may be asked again when it has."""


class GateError(HindcastError):
    """A gate that stopped a table; nothing of it was published."""


class QueryError(HindcastError):
    """A question about a table, key or moment that is not there."""


class UnknownError(QueryError):
    """A question that names a pipeline, table, run or key that is not there."""


FINAL = (AccessError, AskedError, ContractError, GateError, RecordError, SettingsError, TableError)
"""Errors that a retry meets again."""


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint for a mistyped name, whatever its case: `did you mean 'menu'? known here: menu, orders`.

    Of very many names that are known only those nearest to it are told.
    """
    names = sorted(known, key=_in_order)
    plain = {it.lower(): it for it in names}
    written = name.lower()[:_LONG]
    compared: Iterable[str] = plain
    if len(plain) > _COMPARED:  # each comparison takes a while: those that begin alike are near enough
        lower = sorted(plain)
        at = max(bisect.bisect(lower, written) - _COMPARED // 2, 0)
        compared = lower[at : at + _COMPARED]
    close = difflib.get_close_matches(written, compared, n=1)
    hint = f"did you mean '{plain[close[0]]}'? " if close else ""
    if len(names) > _MANY:
        near = [plain[it] for it in difflib.get_close_matches(written, compared, n=_FEW, cutoff=0)]
        return f"{hint}nearest of the {len(names)} known here: {', '.join(near)}"
    return f"{hint}known here: {', '.join(names) or 'none'}"


_MANY, _FEW, _COMPARED, _LONG = 30, 5, 200, 100


def _in_order(name: str) -> list[tuple[int, str]]:
    """What names are sorted by: the numbers in them as numbers, so that 2 comes before 10."""
    return [(len(part.lstrip("0")) if part.isdigit() else 0, part) for part in re.split(r"(\d+)", name)]


_PYTHON = re.compile(r"[\w.]+(?:Error|Exception|Exit|Interrupt)\b")


def cause(failure: Exception) -> str:
    """What Spark says of a failure, in its first line that says something; some of the JVM's come as they are."""
    lines = [line.removeprefix(": ") for line in str(failure).strip().splitlines()]
    said = next(line for line in lines if not line.startswith("An error occurred while calling"))
    if said.rstrip(": ").endswith("from the Python worker"):  # what it was ends the traceback that follows
        said = next((line for line in reversed(lines) if _PYTHON.match(line)), said)
    return said
