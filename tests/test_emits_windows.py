"""Windowed aggregates as Kafka Streams emits them: the vectors, and that a cut changes nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kafka_adapter_windows import emitted

VECTORS = Path(__file__).parent / "conformance"
FAMILIES = {"tumbling": 67, "hopping": 54, "sliding": 59, "session": 61}


def vectors(family: str) -> list[dict[str, Any]]:
    loaded = json.loads((VECTORS / f"windowed_{family}.json").read_text(encoding="utf-8"))
    assert len(loaded) == FAMILIES[family]
    return loaded


def plain(emissions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in emission.items() if name != "headers"} for emission in emissions]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_vectors_pass(family: str) -> None:
    for vector in vectors(family):
        assert plain(emitted(vector)[0]) == vector["expected"]["emitted"], vector["name"]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_cut_anywhere_changes_neither_results_nor_what_is_kept(family: str) -> None:
    for vector in vectors(family):
        whole = emitted(vector)
        for cut in range(len(vector["records"]) + 1):
            assert emitted(vector, (cut,)) == whole, (vector["name"], cut)
