"""Counts in words."""

from __future__ import annotations

from collections.abc import Mapping


def format_count(n: int, noun: str) -> str:
    """Return a count with its noun in singular or plural.

    >>> format_count(1, "row"), format_count(1200, "past answer")
    ('1 row', '1,200 past answers')
    """
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def format_counts(counts: Mapping[str, int]) -> str:
    """Return the counts that are not 0, with what they count.

    >>> format_counts({"accepted": 1200, "expired": 0, "malformed": 1})
    '1,200 accepted, 1 malformed'
    """
    return ", ".join(f"{n:,} {what}" for what, n in counts.items() if n)
