"""Counts in words."""

from __future__ import annotations

from collections.abc import Mapping


def counted(n: int, what: str) -> str:
    """
    >>> counted(1, "row"), counted(1200, "past answer")
    ('1 row', '1,200 past answers')
    """
    return f"{n:,} {what}{'' if n == 1 else 's'}"


def listed(counts: Mapping[str, int]) -> str:
    """
    >>> listed({"accepted": 1200, "expired": 0, "malformed": 1})
    '1,200 accepted, 1 malformed'
    """
    return ", ".join(f"{n:,} {what}" for what, n in counts.items() if n)
