"""Regular expressions of users, matched within a time limit."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence

from hindcast.contract.bounds import ExcessError

MAX_LENGTH, MAX_SECONDS = 1_000, 1.0
"""The most characters of a pattern, and the most time for matching the names of a contract."""


def find_first_match(pattern: str, names: Sequence[str]) -> str | None:
    """Return the first name that a pattern matches as a whole; raise ExcessError for a pattern that takes too long.

    Python's matcher tries every way to split a text among repetitions. Where there can be many ways, a process of its
    own matches, which can be ended: a thread cannot, and blocks all others meanwhile.
    """
    if len(pattern) > MAX_LENGTH:
        raise ExcessError(
            f"a pattern has more than {MAX_LENGTH:,} characters", "write a shorter one, such as orders-.*"
        )
    if len(_REPETITION.findall(pattern)) <= 1 and not _REPEATED_GROUP.search(pattern):
        return next((name for name in names if re.fullmatch(pattern, name)), None)
    try:
        process = subprocess.run(
            [sys.executable, "-I", "-S", "-c", _MATCHER],
            input=json.dumps([pattern, list(names)]),
            capture_output=True,
            text=True,
            timeout=MAX_SECONDS,
            check=True,
        )
    except (subprocess.TimeoutExpired, subprocess.CalledProcessError):
        found = f"'{pattern}' takes too long to match a topic's name"
        raise ExcessError(found, "write it without nested repetitions, such as orders-.*") from None
    name: str | None = json.loads(process.stdout)
    return name


_REPETITION = re.compile(r"[*+{]")
_REPEATED_GROUP = re.compile(r"\)\s*[*+{]")
_MATCHER = """
import json, re, sys
pattern, names = json.load(sys.stdin)
print(json.dumps(next((name for name in names if re.fullmatch(pattern, name)), None)))
"""
