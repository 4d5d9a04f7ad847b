"""Refusals: the exceptions of Kafka Streams for topologies whose contracts are refused."""

from __future__ import annotations

from collections.abc import Mapping

from hindcast.contract.view_checks import Complaint
from hindcast_conformance.vectors import DeclinedVector, Json, KafkaStreamsError

Operation = Mapping[str, Json]


def explain_refusal(complaint: Complaint, operation: Operation) -> Exception:
    """Return what Kafka Streams throws where a contract is refused; DeclinedVector if it throws nothing."""
    illegal = "java.lang.IllegalArgumentException"
    match complaint.location[-1] if complaint.location else "":
        case "history_retention" if "'-" in complaint.found:
            return KafkaStreamsError(illegal, "historyRetention cannot be negative")
        case "grace" if "not versioned" in complaint.found:
            return KafkaStreamsError(illegal, "KTable must be versioned to use a grace period in a stream table join.")
        case "grace" if "longer than the history retention" in complaint.found:
            return KafkaStreamsError(illegal, "History retention must be at least grace period.")
        case "suppress" if "not for versioned tables" in complaint.found:
            upstream = "(looked up in" in complaint.found
            inherited = " (note that version semantics might be inherited from upstream)" if upstream else ""
            text = f"Invalid topology: suppress() is only supported for non-versioned KTables{inherited}"
            return KafkaStreamsError("org.apache.kafka.streams.errors.TopologyException", text)
        case "store_retention":
            return KafkaStreamsError(illegal, _too_short(operation["window"]))
    return DeclinedVector(f"{'.'.join(map(str, complaint.location))}: {complaint.found}")


def _too_short(window: Operation) -> str:
    """Return the message for a window store that does not retain what its windows need."""
    store, reason, lengths = _TOO_SHORT[window["kind"]]
    given = ", ".join(f"{name}=[{window[knob]}]" for name, knob in (*lengths, ("grace", "graceMs")))
    return (
        f"The retention period of the {store} must be no smaller than {reason} plus the grace period. "
        f"Got {given}, retention=[{window['storeRetentionMs']}]"
    )


_OF_SIZE = ("window store KSTREAM-AGGREGATE-STATE-STORE-0000000002", "its window size", (("size", "sizeMs"),))
_TOO_SHORT = {
    "tumbling": _OF_SIZE,
    "hopping": _OF_SIZE,
    "sliding": (
        "window store KSTREAM-AGGREGATE-STATE-STORE-0000000001",
        "2 * time difference",
        (("time difference", "timeDifferenceMs"),),
    ),
    "session": (
        "session store KSTREAM-AGGREGATE-STATE-STORE-0000000002",
        "the session inactivity gap",
        (("gap", "inactivityGapMs"),),
    ),
}
"""By the kind of windows: Kafka Streams' name of their store, what it must retain, and the lengths in its message."""
