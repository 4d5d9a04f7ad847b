"""Partitions as Kafka's default partitioner assigns them: by murmur2 of the key's bytes (Utils.murmur2, toPositive)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from hindcast.common.jit import compile_loop

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hindcast.common.jit import Integers


def assign_partitions(keys: pa.Array, count: int) -> pa.Array:
    """Return the partition of each key (binary or string), out of `count`, as int32; null for a null key.

    b"21" of 1,000    ->    murmur2 -973932308, positive 1173551340: partition 340
    """
    if isinstance(keys, pa.ChunkedArray):
        keys = keys.combine_chunks()
    keys = keys.cast(pa.large_binary())
    _, offsets, data = keys.buffers()
    bounds = np.frombuffer(offsets, np.int64)[keys.offset :][: len(keys) + 1]  # rule: an array begins at its offset
    partitions = _hash_keys(np.frombuffer(data or b"", np.uint8), bounds) % count
    return pa.array(partitions.astype(np.int32), mask=keys.is_null().to_numpy(zero_copy_only=False))


@compile_loop
def _hash_keys(data: NDArray[np.uint8], bounds: Integers) -> Integers:
    """Return the positive murmur2 of each slice of `data` between two `bounds`."""
    hashes = np.empty(len(bounds) - 1, np.int64)
    mixer, whole = np.uint64(0x5BD1E995), np.uint64(0xFFFFFFFF)
    for n in range(len(hashes)):
        start, length = bounds[n], bounds[n + 1] - bounds[n]
        digest = np.uint64(0x9747B28C) ^ np.uint64(length)
        for word in range(length // 4):
            at = start + 4 * word
            part = np.uint64(0)
            for byte in range(4):
                part |= np.uint64(data[at + byte]) << np.uint64(8 * byte)  # rule: words are little-endian
            part = (part * mixer) & whole
            part ^= part >> np.uint64(24)
            part = (part * mixer) & whole
            digest = ((digest * mixer) & whole) ^ part
        rest = length % 4
        for byte in range(rest - 1, -1, -1):
            digest ^= np.uint64(data[start + length - rest + byte]) << np.uint64(8 * byte)
        if rest:  # rule: only a rest of some bytes is mixed in
            digest = (digest * mixer) & whole
        digest ^= digest >> np.uint64(13)
        digest = (digest * mixer) & whole
        digest ^= digest >> np.uint64(15)
        hashes[n] = np.int64(digest & np.uint64(0x7FFFFFFF))  # rule: the hash is made positive
    return hashes
