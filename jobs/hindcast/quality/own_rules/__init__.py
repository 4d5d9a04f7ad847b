"""Hindcast's own rules, as custom expectations that Great Expectations knows once this package is imported.

`periods_and_keys`: periods that overlap, are empty or have gaps, open versions, system time, ties, foreign keys.
`shares`: freshness, offsets, shares of records, of unmatched events and of nulls, row counts. `closed_periods`: what
was closed stays as it was. quality/expectations.py lists the rules that contracts may name.

The `unexpected_rows_query` of a row rule returns exactly the rows that fail, with the columns of the batch. The query
of a share rule returns one number, its `observed_value`, and `checked`, over how much; over nothing it never succeeds.
Both queries are built from the other parameters, over one of these batches:

| row_set | the rows | columns beside the user's |
| --- | --- | --- |
| change | rows that the run would open | those of the period, `systemFrom` |
| near | rows of the changing keys, in the span of the change, as they would be | the same |
| keys | all rows of the changing keys, as they would be | the same |
| plane | current rows near the change, and rows that the run would open | the same |
| table | all rows of the table, as they would be | the same |
| records | rows of a topic's log, of this run | `partition, offset, offsets, timestamp, streamTime, fate` |
| unpublished | rows of a topic's log, since the last run that published its table or was completed | the same |
| ties | the topic's new records | the same, `_unordered`, `_replaced` (bitemporal/ties.py) |
| events | events of a joined stream, of this run | `matched` |

Periods are half-open; without an end they last for ever. `key` names the key columns, `start` and `end` those of the
period. Moments without a zone are UTC. Queries quote names and write moments as numbers, so that neither a name nor the
session's time zone changes their meaning.
"""

from hindcast.quality.own_rules import closed_periods, periods_and_keys, shares

__all__ = ["closed_periods", "periods_and_keys", "shares"]
