"""Regular expressions of users, matched so that none of them takes for ever."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence

from hindcast.contracts.bounds import ExcessError

LONGEST, SECONDS = 1_000, 1.0
"""The most characters of a pattern, and how long it may take over the names of a contract."""


def first_match(pattern: str, names: Sequence[str]) -> str | None:
    """Return the first of some names that a pattern matches as a whole; ExcessError for one that takes too long.

    Python's matcher tries every way to split a text among repetitions. Where that can be many ways, a process of its
    own tries, which can be ended: a thread cannot, and keeps all others waiting meanwhile.
    """
    if len(pattern) > LONGEST:
        raise ExcessError(f"a pattern of more than {LONGEST:,} characters", "write a shorter one, as orders-.*")
    if len(_REPETITION.findall(pattern)) <= 1 and not _REPEATED_GROUP.search(pattern):
        return next((name for name in names if re.fullmatch(pattern, name)), None)
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", _MATCHER],
            input=json.dumps([pattern, list(names)]),
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=True,
        )
    except (subprocess.TimeoutExpired, subprocess.CalledProcessError):
        found = f"'{pattern}' takes too long to match the name of a topic"
        raise ExcessError(found, "write it without repetitions in each other, as orders-.*") from None
    found_name: str | None = json.loads(done.stdout)
    return found_name


_REPETITION = re.compile(r"[*+{]")
_REPEATED_GROUP = re.compile(r"\)\s*[*+{]")
_MATCHER = """
import json, re, sys
pattern, names = json.load(sys.stdin)
print(json.dumps(next((name for name in names if re.fullmatch(pattern, name)), None)))
"""
