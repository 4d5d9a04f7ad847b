"""Lengths of time in words, for people."""

from __future__ import annotations

from datetime import timedelta


def format_age(length: timedelta) -> str:
    """Return how long something is ago, in its two largest units: `3 h 20 min`."""
    return _format_units(int(length.total_seconds()) // 60 * 60) or "less than 1 min"


def format_length(length: timedelta) -> str:
    """Return a length in its two largest units, to the second; one under a second in milliseconds.

    >>> format_length(timedelta(days=2, hours=5, minutes=7)), format_length(timedelta(minutes=4, seconds=5))
    ('2 d 5 h', '4 min 5 s')
    >>> format_length(timedelta(milliseconds=300))
    '300 ms'
    """
    return _format_units(int(length.total_seconds())) or f"{-(-length // timedelta(milliseconds=1))} ms"


def _format_units(seconds: int) -> str:
    """Return seconds in their two largest units; empty for 0."""
    sizes = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))
    first = next((n for n, (_, size) in enumerate(sizes) if seconds >= size), len(sizes))
    parts = []
    for unit, size in sizes[first : first + 2]:
        count, seconds = divmod(seconds, size)
        parts += [f"{count:,} {unit}"] if count else []
    return " ".join(parts)
