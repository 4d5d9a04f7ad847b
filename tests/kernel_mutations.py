"""Deliberate wrong readings of kernels (mutations.py): held to the vectors and histories of the operators that they do.

What is misread, the module, the right text, the wrong one, and operations that must notice.
"""

from __future__ import annotations

from trials import Wrong

LOOKED_UP = ("stream_table_join",)
MET = ("table_table_join",)
ALONE = ("table_table_join", "foreign_key_join")
COUNTED = ("table_aggregate",)

WRONG = (
    (
        "kernel: a version begins after its first moment",
        "engine.sweeps",
        "start[version] <= at[event]",
        "start[version] < at[event]",
        LOOKED_UP,
    ),
    (
        "kernel: a version lasts through its last moment",
        "engine.sweeps",
        "at[event] < end[met]",
        "at[event] <= end[met]",
        LOOKED_UP,
    ),
    (
        "kernel: what has not ended is not valid",
        "engine.sweeps",
        "end[met] == FOREVER or ",
        "end[met] != FOREVER and ",
        LOOKED_UP,
    ),
    (
        "kernel: an event without a version is dropped",
        "engine.operators",
        'if form.how == "inner":',
        'if form.how != "inner":',
        LOOKED_UP,
    ),
    (
        "kernel: an event at a cut is in both slices",
        "engine.slice_reader",
        "first < _timestamp_scalar",
        "first <= _timestamp_scalar",
        LOOKED_UP,
    ),
    (
        "kernel: an event at a cut is in no slice",
        "engine.slice_reader",
        "first >= _timestamp_scalar",
        "first > _timestamp_scalar",
        LOOKED_UP,
    ),
    (
        "kernel: what begins before a slice is not in it",
        "engine.slice_reader",
        "last.is_null() | (last >= _timestamp_scalar(span.start))",
        "first >= _timestamp_scalar(span.start)",
        (*LOOKED_UP, *MET),
    ),
    ("kernel: files are read in no order", "engine.slice_reader", "if np.all(at[1:] >= at[:-1]):", "if True:", MET),
    (
        "kernel: a version is met at its end",
        "engine.sweeps",
        "least, high = since if has_begun else now + 1, last",
        "least, high = since if has_begun else now, last",
        MET,
    ),
    (
        "kernel: what begins at a cut is in no slice",
        "engine.sweeps",
        "start[version] < since",
        "start[version] <= since",
        MET,
    ),
    (
        "kernel: what begins at a cut is in both slices",
        "engine.sweeps",
        "now < stop and now < until",
        "now < stop and now <= until",
        MET,
    ),
    (
        "kernel: what begins before a slice is in it again",
        "engine.sweeps",
        "        if has_begun:",
        "        if False:",
        MET,
    ),
    (
        "kernel: an absence that begins at a cut is in no slice",
        "engine.slice_reader",
        "last >= _timestamp_scalar(span.start)",
        "last > _timestamp_scalar(span.start)",
        ALONE,
    ),
    ("kernel: a piece ends with the last of both", "engine.sweeps", "= min(stop, next_)", "= max(stop, next_)", MET),
    (
        "kernel: an absence lasts to the end",
        "engine.sweeps",
        "next_ = other_start[grouped[place]]",
        "next_ = stop",
        ALONE,
    ),
    (
        "kernel: an absence lasts beyond the slice",
        "engine.operators",
        "return starts[places]",
        "return np.full(count, FOREVER)",
        ALONE,
    ),
    (
        "kernel: an outer join is a left one",
        "engine.operators",
        'if form.how == "outer":',
        "if False:",
        ALONE,
    ),
    ("kernel: a group that is left by all goes on", "engine.sweeps", "if there[its] > 0:", "if True:", COUNTED),
    ("kernel: an end adds as a start does", "engine.sweeps", "by_end[ending], -1", "by_end[ending], 1", COUNTED),
    (
        "kernel: edges at one moment are a step each",
        "engine.sweeps",
        "turn, many = turn + 1, 0\n        while True:",
        "turn, many = turn + 1, 0\n        for _ in range(1):",
        COUNTED,
    ),
    ("kernel: every part has all groups", "engine.operators", "parts) == part, False", "parts) > -1, False", COUNTED),
)

OF_PARTS = (
    Wrong("kernel: rows without a group are one", "engine.operators", "== part, False)", "== part, part == 0)"),
    Wrong(
        "kernel: null is counted", "engine.operators", "if column is None else pc.is_valid", "if True else pc.is_valid"
    ),
    Wrong(
        "kernel: the lower halves of sums are lost", "engine.integer_encoding", "values & (2**HALF - 1)", "values & 0"
    ),
    Wrong("kernel: a sum of nothing is zero", "engine.operators", "kind, counts == 0)", "kind, counts < 0)"),
    Wrong("kernel: who has no value is a member", "engine.operators", "    if no_value:\n", "    if False:\n"),
)
"""What vectors have no case of, held to test_kernels_parts.py."""
