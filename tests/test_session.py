"""What a session of Spark is made ready for."""

from __future__ import annotations

from hindcast.session import allow_deep_plans


def test_a_connect_client_may_send_deep_plans() -> None:
    """As the client does for a checkpoint: it copies the plan into a command's constructor."""
    from pyspark.sql.connect.proto import CheckpointCommand, Relation

    deep = Relation()
    inner = deep
    for _ in range(200):
        inner = inner.limit.input
    inner.range.end = 1
    allow_deep_plans()
    assert CheckpointCommand(relation=deep).relation == deep
