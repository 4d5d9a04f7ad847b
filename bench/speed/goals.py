"""What the issue of speed asks for: at most so many times as long as a peer takes, or at most so many seconds."""

from __future__ import annotations

from typing import NamedTuple

from bench.speed import names
from bench.speed.names import OURS


class Goal(NamedTuple):
    """Of an operation on some data: `most` times the seconds of `peer`, or, where that is Hindcast, `most` seconds."""

    operation: str
    data: str
    peer: str
    most: float

    @property
    def text(self) -> str:
        return f"at most {self.most:g} s" if self.peer == OURS else f"at most {self.most:g}x {self.peer}"

    def met(self, seconds: float | None, ratio: float | None) -> bool | None:
        """Whether it is met; None where it was not measured."""
        measured = seconds if self.peer == OURS else ratio
        return None if measured is None else measured <= self.most


ACROSS = {
    ("b", "hot"): ("a", "uniform", "Hindcast: uniform keys (a)"),
    ("f", names.LARGE): ("f", names.SMALL, f"Hindcast: {names.SMALL}"),
    **{
        ("g", data): ("g", some[names.FEW], f"Hindcast: {some[names.FEW]}")
        for some in (names.REPLAYS, names.BUILDS)
        for count, data in some.items()
        if count != names.FEW
    },
}
"""Hindcast beside itself: what an operation on some data is compared with, and what that is called."""

_AHEAD = 1.0
GOALS = (
    *(Goal("a", kind, names.EQUI, 0.6) for kind in ("uniform", "zipf")),
    *(Goal("a", kind, names.STREAMS, 0.05) for kind in ("uniform", "zipf")),
    Goal("a", "uniform", names.RANGE, _AHEAD),
    *(Goal("a", kind, peer, _AHEAD) for kind in ("uniform", "zipf") for peer in (names.WINDOW, names.TEMPO)),
    *(Goal("a", kind, names.DUCKDB_ASOF, 1.5) for kind in ("uniform", "zipf")),
    *(Goal("a", kind, names.POLARS_ASOF, 1.3) for kind in ("uniform", "zipf")),
    Goal("b", "hot", ACROSS["b", "hot"][2], 1.5),
    *(Goal(code, kind, names.COPY, _AHEAD) for code in ("c", "d") for kind in ("uniform", "zipf")),
    *(Goal("c", kind, peer, 1.5) for kind in ("uniform", "zipf") for peer in (names.DUCKDB_TWO, names.POLARS_TWO)),
    *(Goal("d", kind, peer, 1.5) for kind in ("uniform", "zipf") for peer in (names.DUCKDB_SUMS, names.POLARS_SUMS)),
    *(Goal("j", form, peer, 1.5) for form in names.WINDOWS for peer in (names.DUCKDB_WINDOWS, names.POLARS_WINDOWS)),
    Goal("k", "uniform", names.DUCKDB_PAIRS, 1.5),
    Goal("e", names.RECORDS, names.BYTES, 1.6),
    *(Goal("i", form, names.BYTES, 4) for form in names.FORMS),
    Goal("f", names.LARGE, ACROSS["f", names.LARGE][2], 1.2),
    Goal("f", names.LARGE, names.MERGE, 0.25),
    Goal("g", names.SUBMIT, OURS, 8),
    Goal("g", names.REPLAYS[names.FEW], OURS, 0.5),
    Goal("g", names.BUILDS[names.FEW], OURS, 0.4),
    *(Goal("g", data, peer, 2) for (code, data), (_, _, peer) in ACROSS.items() if code == "g"),
    Goal("g", names.DAG, names.EMPTY, 1.4),
    Goal("h", names.POINT, OURS, 0.050),
    Goal("h", names.SPAN, OURS, 0.300),
)
