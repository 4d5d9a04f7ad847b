"""Regular expressions of users, matched within a time limit."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence

MAX_LENGTH, MAX_SECONDS, MAX_RUN_SECONDS = 1_000, 1.0, 10.0
"""The most characters of a pattern; the most time for matching all patterns of a contract with the names in it, and
for matching one with all topics of a cluster.
"""


SIMPLER_FIX = "write it without nested repetitions, such as orders-.*"


class SlowPatternError(Exception):
    """A pattern that takes too long: its place among the patterns."""

    def __init__(self, place: int) -> None:
        self.place = place
        super().__init__(place)


def find_matches(patterns: Sequence[str], names: Sequence[str], seconds: float = MAX_SECONDS) -> list[list[str]]:
    """Return for each pattern the names that it matches as a whole; raise SlowPatternError after some seconds.

    Python's matcher tries every way to split a text among repetitions, optional parts and alternatives. Where there can
    be many ways, a process of its own matches all patterns, which can be ended: a thread cannot, and blocks all others
    meanwhile.
    """
    if not names or all(len(_CHOICE.findall(pattern)) <= 1 for pattern in patterns):
        return [[name for name in names if re.fullmatch(pattern, name)] for pattern in patterns]
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _MATCHER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        written, _ = process.communicate(json.dumps([list(patterns), list(names)]), timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        written, _ = process.communicate()
    matches: list[list[str]] = [json.loads(line) for line in written.splitlines()]
    if len(matches) < len(patterns):
        raise SlowPatternError(len(matches))
    return matches


_CHOICE = re.compile(r"[*+{?|]")
"""What lets a pattern match in several ways: one alone is soon tried, unless it repeats a group that has another."""
_MATCHER = """
import json, re, sys
patterns, names = json.load(sys.stdin)
for pattern in patterns:
    print(json.dumps([name for name in names if re.fullmatch(pattern, name)]), flush=True)
"""


def may_be_slow(pattern: str) -> bool:
    """Return whether there can be a text for which matching takes for ever, as far as the pattern's form tells.

    A repeated group can be tried in exponentially many ways, and so can many optional parts and alternatives. Each
    repetition multiplies their number by the length of the text, and so does a search that can begin anywhere.

    >>> [may_be_slow(pattern) for pattern in ("^(a+)+$", "^[a-z]+-[0-9]+$", ".*x.*x.*x.*x")]
    [True, False, True]
    """
    starts = 0 if pattern.startswith("^") and "|" not in pattern else 1
    return (
        _REPEATED_GROUP.search(pattern) is not None
        or _FREE_SPACING.search(pattern) is not None
        or r"\Q" in pattern  # what is quoted is removed, and may stand between a group and its repetition
        or starts + len(_REPETITION.findall(pattern)) > _MAX_DEGREE
        or len(_OPTION.findall(pattern)) > _MAX_OPTIONS
    )


_REPEATED_GROUP, _REPETITION, _MAX_DEGREE = re.compile(r"\)[*+{]"), re.compile(r"[*+]|\{\d+,"), 2
_FREE_SPACING = re.compile(r"\(\?[a-zA-Z]*x")
"""Spaces and comments in a pattern, also between a group and its repetition."""

_OPTION, _MAX_OPTIONS = re.compile(r"(?<![(*+?}])\?|\|"), 8


def combine_patterns(patterns: Sequence[str], *, any_may_match: bool) -> list[str]:
    """Return the regular expressions that a text has to match, all of them: several of which any may match are one.

    >>> combine_patterns(["a", "b"], any_may_match=True)
    ['a|b']
    """
    return ["|".join(patterns)] if any_may_match else [*patterns]


def may_like_be_slow(pattern: str) -> bool:
    """Return whether matching LIKE can take for ever: each `%` multiplies the ways by the length of the text.

    >>> [may_like_be_slow(pattern) for pattern in ("%x%", "a%b%c%", "%a%b%c%d")]
    [False, False, True]
    """
    return pattern.count("%") - pattern.endswith("%") > _MAX_DEGREE
