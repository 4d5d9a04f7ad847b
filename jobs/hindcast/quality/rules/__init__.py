"""Hindcast's own rules, as custom expectations that Great Expectations knows once this package is imported.

A row rule asks for the rows that fail: `unexpected_rows_query` gives exactly these, with the columns of the batch. A
share rule asks for one number, its `observed_value`; `checked` says over how much, and over nothing it never succeeds.
Both make their query of their other parameters, over one of these batches:

| about | the rows | columns beside the user's |
| --- | --- | --- |
| change | that the run would open | those of the period, `systemFrom` |
| near | of the keys that it touches, in the span of what changes, as they would be | the same |
| keys | of the keys that it touches, all of them, as they would be | the same |
| plane | believed before near the change, and those that it would open | the same |
| table | of the whole table, as they would be | the same |
| records | of a topic's log, of this run | `partition, offset, offsets, timestamp, streamTime, fate` |
| unpublished | of a topic's log, since a run has published its table or was completed | the same |
| ties | of the topic's records that came, each as a row | the same, `_unordered`, `_replaced` (corrected/ties.py) |
| events | of a joined stream, of this run | `matched` |

Periods are half-open, without an end they last for ever. `key` names the key columns, `start` and `end` those of the
period. Moments are UTC unless they say otherwise. Names are quoted and moments counted, so that neither a name nor the
session's time zone changes what a query means.
"""

from hindcast.quality.rules import rows, shares

__all__ = ["rows", "shares"]
