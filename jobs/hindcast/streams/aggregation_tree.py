"""How each aggregate was computed, step by step, as the nodes of a growing tree; independent of the measures.

A node is a row of three integers: the operation, the earlier node that it applies to, and its argument. `NOTHING` as a
node is the initial aggregate, as a value a null.

    ADD, node, value          the adder
    SUBTRACT, node, value     the subtractor
    MERGE, node, node         the merger of two sessions
    KEPT, row, NOTHING        an aggregate that an earlier run left: a row of the state

A value is the number of a row of the input. `measures.py` computes the measures of all nodes at once.
"""

from __future__ import annotations

ADD, SUBTRACT, MERGE, KEPT = 0, 1, 2, 3
