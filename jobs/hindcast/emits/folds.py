"""What aggregates are made of, step by step, without what they aggregate: nodes of a tree that grows.

A node is a row of three integers: what was done, to which earlier node, with what. `NOTHING` as a node is the initial
aggregate, as a value a null.

    ADD, node, value          the adder
    SUBTRACT, node, value     the subtractor
    MERGE, node, node         the merger of two sessions
    KEPT, row, NOTHING        an aggregate that an earlier run has left: a row of what is kept

A value is the number of a row of the input. What the nodes amount to is computed once, for all of them (`measures.py`).
"""

from __future__ import annotations

ADD, SUBTRACT, MERGE, KEPT = 0, 1, 2, 3
