"""The oracle is what the vectors were made with: Kafka Streams' test driver gives every one of them again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import oracle
import topologies

VECTORS = Path(__file__).parent / "conformance"

pytestmark = pytest.mark.long


def test_the_driver_gives_every_vector_again() -> None:
    files = [path for path in sorted(VECTORS.glob("*.json")) if not path.name.startswith("corrected_")]
    vectors = [vector for path in files for vector in json.loads(path.read_text(encoding="utf-8"))]
    bare = [{name: vector[name] for name in ("name", "operation", "records")} for vector in vectors]
    made = {vector["name"]: vector["expected"] for vector in oracle.expected(bare)}
    assert [vector["name"] for vector in vectors if made[vector["name"]] != vector["expected"]] == []
    assert len(made) == 1326


@pytest.mark.parametrize("family", topologies.FAMILIES)
def test_random_vectors_are_taken_and_mostly_say_something(family: str) -> None:
    made = [vector["expected"] for vector in oracle.expected(list(topologies.vectors(family, 40)))]
    failed = [it["error"] for it in made if it.get("error", {}).get("phase") in ("init", "process")]
    assert [it for it in failed if it["message"] != "key cannot be null"] == []
    said = sum(bool(it.get("emitted") or it.get("results") or it.get("error")) for it in made)
    assert said >= len(made) / 2


def test_vectors_of_a_family_number_and_seed_are_the_same() -> None:
    one, again, other = (list(topologies.vectors("store", 3, seed)) for seed in (1, 1, 2))
    assert one == again
    assert one != other
