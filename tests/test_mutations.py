"""The wrong readings of `make mutate` are of the code as it is: what each would misread is there."""

from __future__ import annotations

import mutations
import trials


def test_the_text_that_a_wrong_reading_changes_is_in_its_module() -> None:
    once = [(it, 1) for it in (*mutations.WRONG, *mutations.MISDATED)]
    lost = [
        f"{it.module}: {it.reading}"
        for it, most in (*once, *((it, 99) for it in (*mutations.MUTATIONS, *mutations.OF_KERNELS)))
        if not 1 <= trials.source_of(it.module).read_text(encoding="utf-8").count(it.right) <= most
    ]
    assert not lost
