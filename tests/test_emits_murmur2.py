"""The partition of a key, as Kafka's clients tell it."""

from __future__ import annotations

import pyarrow as pa

from hindcast.streams.murmur2 import assign_partitions

SEEN = {
    b"": 681,
    b"a": 524,
    b"ab": 434,
    b"abc": 107,
    b"21": 340,
    b"foobar": 166,
    b"curry": 65,
    "😀é".encode(): 573,
    b"a-little-bit-longer-string": 819,
    b"\xff\x80\x00\xfe\x81": 136,
}
"""What `Utils.toPositive(Utils.murmur2(key)) % 1000` of kafka-clients 4.3.1 gives."""


def test_keys_have_the_partitions_that_kafka_gives_them() -> None:
    assert assign_partitions(pa.array(list(SEEN)), 1000).to_pylist() == list(SEEN.values())


def test_a_null_key_has_none_and_its_neighbours_have_theirs() -> None:
    keys = pa.chunked_array([[b"lead", b"21", None], [b"abc"]], pa.binary())
    assert assign_partitions(keys.slice(1), 1000).to_pylist() == [340, None, 107]
    for kind in (pa.binary(), pa.large_binary()):
        assert assign_partitions(pa.array([b"lead", b"21"], kind)[1:], 1000).to_pylist() == [340]
    assert assign_partitions(pa.array([], pa.binary()), 3).to_pylist() == []
