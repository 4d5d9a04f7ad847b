"""Deliberate wrong readings of the operators of the `kafka` reading, rule by rule of the vectors' README."""

from __future__ import annotations

from trials import Wrong

WRONG = (
    Wrong(
        "a put at T - R is rejected",
        "emits.versioned",
        "if time[slot] < store.reached[home] - retention:",
        "if time[slot] <= store.reached[home] - retention:",
    ),
    Wrong(
        "tombstones do not move stream time",
        "emits.versioned",
        "store.reached[home] = max(store.reached[home], time[slot])",
        "store.reached[home] = max(store.reached[home], time[slot] if value != NOTHING else NOTHING)",
    ),
    Wrong(
        "a put's return code is the time of the latest version",
        "emits.versioned",
        "return int(time[following])",
        "return int(time[latest if latest != NOTHING else following])",
    ),
    Wrong(
        "a put at the latest's own time is out of order",
        "emits.versioned",
        "if latest == NOTHING or slot < latest:",
        "if latest == NOTHING or slot <= latest:",
    ),
    Wrong(
        "no tombstone is forgotten",
        "emits.versioned",
        "    # At the latest's own time",
        "    if value == NOTHING:\n        _bound(store, slot, NOTHING)\n    # At the latest's own time",
    ),
    Wrong(
        "every tombstone at the latest's own time is forgotten",
        "emits.versioned",
        "        _bound(store, slot, NOTHING)\n    # At",
        "    # At",
    ),
    Wrong(
        "a look-up at T - R finds no older version",
        "emits.versioned",
        "if store.slots.time[slot] < store.reached[store.home[key]] - retention:",
        "if store.slots.time[slot] <= store.reached[store.home[key]] - retention:",
    ),
    Wrong(
        "a look-up past T - R misses the latest version too",
        "emits.versioned",
        "if latest != NOTHING and latest <= slot:",
        ("if NOTHING != latest <= slot and store.slots.time[slot] >= store.reached[store.home[key]] - retention:"),
    ),
    Wrong(
        "a look-up past T - R finds what is still kept",
        "emits.versioned",
        "if store.slots.time[slot] < store.reached[store.home[key]] - retention:",
        "if store.slots.time[slot] < NOTHING:",
    ),
    Wrong(
        "an older boundary loses its value to the end of another version",
        "emits.versioned",
        "    if not is_taken(store.boundaries, slot):\n        take",
        "    if True:\n        take",
    ),
    Wrong("what is valid at T - R is not kept", "emits.versioned", "if time <= bound:\n", "if time <= bound + 1:\n"),
    Wrong(
        "tombstones are not kept",
        "emits.versioned",
        "if time >= bound or store.value[slot] != NOTHING:",
        "if store.value[slot] != NOTHING:",
    ),
    Wrong(
        "a store that is not versioned refuses what is older",
        "emits.stores",
        "            held_value[k] = value[n]\n",
        "            if time[n] < at:\n                continue\n            held_value[k] = value[n]\n",
    ),
    Wrong(
        "a tombstone that a filter leaves out moves the time of its store",
        "emits.stores",
        (
            "            answers[n, 0] = LEFT_OUT\n"
            "        elif what[n] <= PUT_UNLESS_ABSENT:\n"
            "            answers[n, 0] = put("
        ),
        (
            "            put(store, key[n], slot[n], value[n], retention)\n"
            "            answers[n, 0] = LEFT_OUT\n"
            "        elif what[n] <= PUT_UNLESS_ABSENT:\n"
            "            answers[n, 0] = put("
        ),
    ),
    Wrong(
        "the value before a put is the one valid at its time",
        "emits.stores",
        "if what[n] == GET_AT:",
        "if what[n] != GET:",
    ),
    Wrong(
        "what a store rejects is passed on",
        "emits.tables",
        "passed = (code != REJECTED) & (code != LEFT_OUT)",
        "passed = code != LEFT_OUT",
    ),
    Wrong("nothing is out of order", "emits.tables", "latest=code < 0", "latest=code < 2**61"),
    Wrong("a filter leaves out tombstones whatever it knows", "emits.tables", " | (not leaves_out)", ""),
    Wrong("a filter leaves out no tombstone", "emits.tables", " | (not leaves_out)", " | True"),
    Wrong(
        "a filter does not ask for what was before",
        "emits.tables",
        "ASKS if step.filters else ASKS_NOTHING",
        "ASKS_NOTHING",
    ),
    Wrong(
        "a filter that asks makes the source keep a store",
        "emits.tables",
        "known = source_materialized or asked[0] == INSISTS",
        "known = source_materialized or asked[0] != ASKS_NOTHING",
    ),
    Wrong(
        "a filter on a versioned table leaves out tombstones",
        "emits.tables",
        " and knows and not versioned[number]",
        " and knows",
    ),
    Wrong(
        "a look-up misses the record before",
        "emits.tables",
        "np.concatenate((stored.order, order[there]))",
        "np.concatenate((stored.order, order[there] - 2))",
    ),
    Wrong(
        "a look-up finds what the filter has not let pass",
        "emits.tables",
        "np.append(table.passing, False)[found[0]]",
        "np.append(table.passing | True, False)[found[0]]",
    ),
    Wrong(
        "a left join takes events without a value",
        "emits.stream_table",
        "(events.value != NOTHING) & (",
        '((events.value != NOTHING) | (how == "left")) & (',
    ),
    Wrong(
        "an event meets the latest version, not the one of its time",
        "emits.stream_table",
        "home, events.timestamp)",
        "home)",
    ),
    Wrong("a left join drops events without a row", "emits.stream_table", ' | (how == "left")', ""),
    Wrong(
        "released only when S is past the grace period",
        "emits.buffer",
        "np.searchsorted(largest[1:] - grace, every.timestamp)",
        'np.searchsorted(largest[1:] - grace, every.timestamp, "right")',
    ),
    Wrong(
        "released by arrival before key",
        "emits.buffer",
        "np.lexsort((arrival, every.key, every.timestamp, at))",
        "np.lexsort((every.key, arrival, every.timestamp, at))",
    ),
    Wrong(
        "released by key before timestamp",
        "emits.buffer",
        "np.lexsort((arrival, every.key, every.timestamp, at))",
        "np.lexsort((arrival, every.timestamp, every.key, at))",
    ),
    Wrong(
        "an event with neither value nor a chance moves S",
        "emits.buffer",
        "records = _chosen(records, records.value != NOTHING)",
        "records = records",
    ),
    Wrong(
        "a left join with a grace period drops null keys",
        "emits.buffer",
        (
            "    elif nameless.size:\n"
            "        failed = int(records.order[nameless[0]])\n"
            "        records = _chosen(records, slice(nameless[0]))"
        ),
        "    else:\n        records = _chosen(records, records.key != NOTHING)",
    ),
    Wrong(
        "S begins anew with each run",
        "emits.buffer",
        "np.append(kept.largest, records.timestamp)",
        "np.append(NOTHING, records.timestamp)",
    ),
    Wrong("a result has the time of its record", "emits.table_table", "np.maximum(at, since)[merged]", "at[merged]"),
    Wrong(
        "records out of order trigger", "emits.table_table", "side.changes.where(side.changes.latest)", "side.changes"
    ),
    Wrong(
        "an inner join tells a tombstone only of what was there",
        "emits.table_table",
        "told = (other != NOTHING) |",
        "told = ((other != NOTHING) & ((own != NOTHING) | (before != NOTHING))) |",
    ),
    Wrong(
        "a left join tells of a right record without a left row",
        "emits.table_table",
        '"left": of_left, "outer": True}',
        '"left": True, "outer": True}',
    ),
    Wrong(
        "a right tombstone ends the row of a left join",
        "emits.table_table",
        '"left": ~of_left, "outer": True}',
        '"left": of_left, "outer": True}',
    ),
    Wrong(
        "a tombstone where there was no row is told",
        "emits.table_table",
        " & ((own != NOTHING) | (before != NOTHING))",
        "",
    ),
    Wrong("a left record's result has its own time", "emits.foreign_key", "at = max(time, other_time)", "at = time"),
    Wrong(
        "the tombstone of a foreign key given up has its record's time",
        "emits.foreign_key",
        "at = max(time, left_behind_time)",
        "at = time",
    ),
    Wrong(
        "a foreign key that stays without a right row gives a tombstone",
        "emits.foreign_key",
        "told = other != NOTHING or moved",
        "told = other != NOTHING or leaves != NOTHING",
    ),
    Wrong(
        "a foreign key that changes to one without a right row gives nothing",
        "emits.foreign_key",
        "told = other != NOTHING or moved",
        "told = other != NOTHING",
    ),
    Wrong(
        "a right tombstone leaves the left row in an inner join",
        "emits.foreign_key",
        "holds[place] if value != NOTHING or outer else NOTHING",
        "holds[place]",
    ),
    Wrong("left records out of order trigger", "emits.foreign_key", "left.where(left.latest)", "left"),
    Wrong(
        "right records out of order trigger",
        "emits.foreign_key",
        "right.changes.where(right.changes.latest)",
        "right.changes",
    ),
    Wrong(
        "a left join tells of a tombstone without a row",
        "emits.foreign_key",
        "told = value != NOTHING or before != NOTHING",
        "told = True",
    ),
    Wrong(
        "a subscription stays when the foreign key changes",
        "emits.foreign_key",
        "            leave(subscribed, leaves)\n",
        "            pass\n",
    ),
    Wrong("votes out of order are counted", "emits.aggregates", "it = changes.where(changes.latest)", "it = changes"),
    Wrong(
        "a result has the time of its record", "emits.aggregates", "if before != NOTHING and since > at:", "if False:"
    ),
    Wrong(
        "the new group's result comes before the old one's",
        "emits.aggregates",
        "(2 * leaves, 2 * joins + 1)",
        "(2 * leaves + 1, 2 * joins)",
    ),
    Wrong(
        "within a group subtraction and addition give a result each",
        "emits.aggregates",
        "(old != NOTHING) & (old != new)",
        "old != NOTHING",
    ),
    Wrong(
        "an update that the store rejects is passed on", "emits.aggregates", "rows[:, 0] != REJECTED", "rows[:, 0] != 1"
    ),
    Wrong(
        "null values of a stream are aggregated",
        "emits.aggregates",
        "there = (key != NOTHING) & (value != NOTHING)",
        "there = key != NOTHING",
    ),
    Wrong(
        "a subtraction from nothing makes an aggregate",
        "emits.aggregates",
        "if subtracted[n] != NOTHING and node != NOTHING:",
        "if subtracted[n] != NOTHING:",
    ),
    Wrong(
        "a window that ends at T - grace takes records",
        "emits.time_windows",
        "np.maximum(timestamp, closed) -",
        "np.maximum(timestamp, closed - 1) -",
    ),
    Wrong("windows before time 0", "emits.time_windows", "self.advance + 1, 0)", "self.advance + 1, -(2**40))"),
    Wrong(
        "a result has the time of its record",
        "emits.time_windows",
        "max(timestamps[place], timestamp[result])",
        "timestamp[result]",
    ),
    Wrong(
        "a reducer's first null is stored",
        "emits.time_windows",
        "stored == NOTHING and reduce and value[result] == NOTHING",
        "False",
    ),
    Wrong("null values are dropped", "emits.time_windows", "takes_nulls = True", "takes_nulls = False"),
    Wrong(
        "windows within their grace are not kept", "emits.time_windows", "> task.reached - self.grace", "> task.reached"
    ),
    Wrong(
        "a scan misses the windows at the edge of the retention",
        "emits.time_windows",
        "stored >= written - self.store_retention",
        "stored > written - self.store_retention",
    ),
    Wrong(
        "a record is late at T - grace",
        "emits.sliding_windows",
        "if moment + difference < close[record]:",
        "if moment + difference <= close[record]:",
    ),
    Wrong(
        "a window that ends at T - grace takes no records",
        "emits.sliding_windows",
        "store.start[last] + difference >= close",
        "store.start[last] + difference > close",
    ),
    Wrong("null values are aggregated", "emits.sliding_windows", "takes_nulls = False", "takes_nulls = True"),
    Wrong(
        "the store shows a window one retention behind",
        "emits.sliding_windows",
        "self.store_retention if task.scans else self.store_retention - 1",
        "self.store_retention",
    ),
    Wrong(
        "the store of on_window_close has the reach of the other",
        "emits.sliding_windows",
        "self.store_retention if task.scans else self.store_retention - 1",
        "self.store_retention - 1",
    ),
    Wrong(
        "the default retention is one difference and the grace",
        "emits.sliding_windows",
        "2 * self.difference + self.grace",
        "self.difference + self.grace",
    ),
    Wrong("early records have windows like others", "emits.sliding_windows", "if moment >= difference:", "if True:"),
    Wrong(
        "no window just after the record before",
        "emits.sliding_windows",
        "previous + 1 + difference >= max(moment, close)",
        "previous + 1 + difference > max(moment, close)",
    ),
    Wrong(
        "the window just after a record takes the record",
        "emits.sliding_windows",
        ("store.node[after], store.timestamp[after], True)\n    return changes, count\n\n\n@compiled\ndef _early"),
        ("store.node[after], store.timestamp[after], False)\n    return changes, count\n\n\n@compiled\ndef _early"),
    ),
    Wrong(
        "windows there already come by ascending start",
        "emits.sliding_windows",
        "    there = is_taken(store.taken, left) and store.start[left] >= reach\n",
        (
            "    changes[:count] = changes[:count][::-1].copy()\n"
            "    there = is_taken(store.taken, left) and store.start[left] >= reach\n"
        ),
    ),
    Wrong(
        "a session that ends at T - grace - gap takes no records",
        "emits.session_windows",
        "if end < close[record]:",
        "if end <= close[record]:",
    ),
    Wrong(
        "a record is late by itself, not by its session",
        "emits.session_windows",
        "if end < close[record]:",
        "if moment < close[record]:",
    ),
    Wrong(
        "no tombstone where a session keeps its bounds",
        "emits.session_windows",
        "        if start != end:\n",
        "        if start != end and not (met == 1 and place != own[record] and starts[place] == start):\n",
    ),
    Wrong(
        "a tombstone for what becomes [t, t] again",
        "emits.session_windows",
        "        if start != end:\n",
        "        if met:\n",
    ),
    Wrong(
        "sessions a gap apart do not merge",
        "emits.session_windows",
        "max(moment - gap, written - behind)",
        "max(moment - gap + 1, written - behind)",
    ),
    Wrong(
        "sessions out of the store's reach merge",
        "emits.session_windows",
        "max(moment - gap, written - behind)",
        "moment - gap",
    ),
    Wrong(
        "the store shows a session one retention behind",
        "emits.session_windows",
        "self.store_retention - 1",
        "self.store_retention",
    ),
    Wrong(
        "a tombstone has the time of its record",
        "emits.session_windows",
        "ends[found], NOTHING, ends[found]",
        "ends[found], NOTHING, moment",
    ),
    Wrong("null values are dropped", "emits.session_windows", "takes_nulls = True", "takes_nulls = False"),
    Wrong(
        "segments are as long as half the retention, however short that is",
        "emits.session_windows",
        "max(self.store_retention // 2, 60_000)",
        "max(self.store_retention // 2, 1)",
    ),
    Wrong(
        "suppression lets out a window only past its grace",
        "emits.closing",
        "largest, windows.lag)",
        "largest, windows.lag + 1)",
    ),
    Wrong(
        "suppressed results come by key before end",
        "emits.closing",
        "np.lexsort((rows.start[out], rows.key[out], rows.end[out], at[out]))",
        "np.lexsort((rows.start[out], rows.end[out], rows.key[out], at[out]))",
    ),
    Wrong("suppression emits tombstones", "emits.closing", "replaced | (rows.node == NOTHING)", "replaced"),
    Wrong(
        "suppression emits what was replaced",
        "emits.closing",
        "replaced | (rows.node == NOTHING)",
        "rows.node == NOTHING",
    ),
    Wrong("a scan lets out a window that still takes records", "emits.closing", "int(windows.ends_inclusive)", "0"),
    Wrong(
        "a scan finds windows that the store has dropped",
        "emits.closing",
        ('    out = out[windows.has(stored[out], written[np.searchsorted(results.record, at[out], "right")])]\n'),
        "",
    ),
    Wrong(
        "scanned results come by key before start",
        "emits.closing",
        "np.lexsort((rows.key[out], rows.start[out], stored[out], at[out]))",
        "np.lexsort((rows.start[out], stored[out], rows.key[out], at[out]))",
    ),
    Wrong(
        "a suppressed result has the headers of the record that lets it out",
        "emits.closing",
        "return Emitted(cause, *Waiting(*(column[out] for column in rows))), _left",
        "return Emitted(cause, *Waiting(*(column[out] for column in rows))._replace(headers=cause)), _left",
    ),
    Wrong("null keys move T", "emits.closing", "taken = records.key != NOTHING\n", "taken = records.key >= NOTHING\n"),
    Wrong(
        "T and W begin anew with each run",
        "emits.windowed",
        "np.maximum.accumulate(np.append(before, values))[1:]",
        "np.maximum.accumulate(values)",
    ),
    Wrong(
        "what waits is taken for what is in the store",
        "emits.windowed",
        "np.split(row, [len(kept.windows.key)])",
        "np.split(row, [len(kept.waiting.key)])",
    ),
    Wrong(
        "an update waits until P is past the limit",
        "emits.time_limit",
        "np.searchsorted(largest[1:] - limit, place)",
        'np.searchsorted(largest[1:] - limit, place, "right")',
    ),
    Wrong(
        "a later update changes the place",
        "emits.time_limit",
        "np.lexsort((every.key[final], place[first], cause))",
        "np.lexsort((every.key[final], every.timestamp[final], cause))",
    ),
    Wrong(
        "tombstones do not come out",
        "emits.time_limit",
        "out = cause < updates.key.size",
        "out = (cause < updates.key.size) & (every.value[final] != NOTHING)",
    ),
    Wrong(
        "P begins anew with each run",
        "emits.time_limit",
        "np.append(kept.largest, updates.timestamp)",
        "np.append(NOTHING, updates.timestamp)",
    ),
    Wrong(
        "a window without its upper bound",
        "emits.stream_stream",
        "tables.time_at[at] <= upper",
        "tables.time_at[at] < upper",
    ),
    Wrong(
        "a window turned round",
        "emits.stream_stream",
        "back, ahead = (window.after, window.before), (window.before, window.after)",
        "back, ahead = (window.before, window.after), (window.after, window.before)",
    ),
    Wrong(
        "the other side is in reach a millisecond longer",
        "emits.stream_stream",
        " + window.grace) + 1",
        " + window.grace)",
    ),
    Wrong(
        "the reach has no grace",
        "emits.stream_stream",
        "(window.before + window.after + window.grace) + 1",
        "(window.before + window.after) + 1",
    ),
    Wrong(
        "dropped records do not move T",
        "emits.stream_stream",
        (
            "        stream_time = max(stream_time, now)\n"
            "        if tables.value[record] == NOTHING:\n"
            "            continue\n"
        ),
        (
            "        if tables.value[record] == NOTHING:\n"
            "            continue\n"
            "        stream_time = max(stream_time, now)\n"
        ),
    ),
    Wrong("m is the latest that waits", "emits.stream_stream", "min(noted, now)", "max(noted, now)"),
    Wrong(
        "a late record releases what waits",
        "emits.stream_stream",
        "if now == stream_time and may_release:",
        "if may_release:",
    ),
    Wrong(
        "nothing is noted, each record looks at what waits",
        "emits.stream_stream",
        "may_release = noted != NOTHING and noted + ahead[side] + window.grace < stream_time",
        "may_release = True",
    ),
    Wrong(
        "a record whose window ends at T does not wait",
        "emits.stream_stream",
        "if upper < stream_time:",
        "if upper <= stream_time:",
    ),
    Wrong(
        "an outer side drops null keys",
        "emits.stream_stream",
        "        if tables.key[record] == NOTHING:\n            if outer[side]:",
        "        if tables.key[record] == NOTHING:\n            if False:",
    ),
    Wrong(
        "a pair's time is the record's", "emits.stream_stream", "row[4] = max(row[4], tables.timestamp[other])", "pass"
    ),
    Wrong(
        "released by key before side",
        "emits.stream_stream",
        "np.lexsort((key, side, timestamp))",
        "np.lexsort((side, key, timestamp))",
    ),
    Wrong(
        "what has found a match still waits",
        "emits.stream_stream",
        "            if tables.waiting[other]:\n",
        "            if False:\n",
    ),
    Wrong(
        "released when its window and grace have just ended",
        "emits.stream_stream",
        "tables.timestamp[tables.record_next[heads[of]]] < closed[of]",
        "tables.timestamp[tables.record_next[heads[of]]] <= closed[of]",
    ),
    Wrong(
        "a release looks at no entry more when both sides are open",
        "emits.stream_stream",
        "            looked_at = min(beyond) if min(beyond) != NOTHING else max(beyond)\n",
        "            pass\n",
    ),
    Wrong(
        "records at the edge of the reach are not kept",
        "emits.stream_stream",
        "in_reach = timestamp >=",
        "in_reach = timestamp >",
    ),
    Wrong(
        "a place at the very time is passed over",
        "emits.places",
        "keys[middle] == key and times[middle] < time",
        "keys[middle] == key and times[middle] <= time",
    ),
    Wrong(
        "a place left takes its neighbours along",
        "emits.places",
        "while node > 1 and not taken[node ^ 1]:",
        "while node > 1:",
    ),
    Wrong("a table that grows loses its rows", "compiled", "    wider[:used] = rows[:used]\n", ""),
    Wrong(
        "a table has room for one row too many",
        "compiled",
        "if used < rows.shape[0]:",
        "if used <= rows.shape[0]:",
    ),
    Wrong(
        "a query misses the version that begins at its end",
        "conformance.storing",
        'v["validFrom"] <= end',
        'v["validFrom"] < end',
    ),
    Wrong(
        "a query meets the version that ends at its start",
        "conformance.storing",
        'v["validTo"] > start',
        'v["validTo"] >= start',
    ),
    Wrong("a query to T - R has the latest version only", "conformance.storing", "end < bound:", "end <= bound:"),
    Wrong(
        "a query finds versions that end in a later segment",
        "conformance.storing",
        " and (end is None or segment <= end // self.interval)",
        "",
    ),
    Wrong(
        "a grace period as long as the retention is refused",
        "conformance.topology",
        "if grace > table.retention:",
        "if grace >= table.retention:",
    ),
    Wrong(
        "a table that is not versioned may have a grace period",
        "conformance.topology",
        "if not table.versioned:",
        "if False:",
    ),
    Wrong(
        "versions are held back",
        "conformance.tasks",
        "                if table.versioned:\n",
        "                if False:\n",
    ),
    Wrong("null values are counted", "emits.measures", "np.append(counted, False)", "np.append(counted, True) | True"),
    Wrong(
        "rows without a value are not counted",
        "emits.measures",
        'if part.function == "count" else np.ones(len(given) + 1, np.bool_)',
        "if True else counted",
    ),
    Wrong(
        "the subtractor adds",
        "emits.measures",
        "numbers[second] if what == ADD else -numbers[second]",
        "numbers[second]",
    ),
    Wrong(
        "a sum of no number is 0",
        "emits.measures",
        "pa.array(total, type=kind, mask=~there)",
        "pa.array(total, type=kind)",
    ),
    Wrong("sums wrap round", "emits.measures", "raise OverflowError(_OVERFLOW)", "pass"),
    Wrong("a kept sum of no number is 0", "emits.measures", "= kept[first], some[first]", "= kept[first], True"),
    Wrong("the largest is the least", "emits.measures", 'sign = 1 if part.function == "min" else -1', "sign = 1"),
    Wrong("an average is over null values too", "emits.measures", '"avg": ("sum", "count")', '"avg": ("sum", "rows")'),
    Wrong("decimals of more than 18 digits are cut", "emits.measures", "raise OverflowError(_INEXACT)", "pass"),
    Wrong(
        "words are big-endian",
        "emits.murmur2",
        "np.uint64(8 * byte)\n            part =",
        "np.uint64(24 - 8 * byte)\n            part =",
    ),
    Wrong("the hash is not made positive", "emits.murmur2", "np.uint64(0x7FFFFFFF)", "whole"),
    Wrong("a rest of no bytes is mixed in", "emits.murmur2", "        if rest:\n", "        if True:\n"),
    Wrong("an array's offset is passed over", "emits.murmur2", "[keys.offset :][: len(keys) + 1]", "[: len(keys) + 1]"),
    Wrong(
        "keys sort by their first appearance",
        "emits.rows",
        "rank[ascending] = np.arange(len(ascending))",
        "rank[:-1] = np.arange(len(ascending))",
    ),
    Wrong(
        "results of one cause have the same turn",
        "emits.rows",
        "flat[last] = np.arange(len(causes)) - begun",
        "flat[last] = 0",
    ),
    Wrong(
        "all keys are of the first partition",
        "emits.rows",
        "np.flatnonzero(found) % width",
        "np.flatnonzero(found) * 0",
    ),
    Wrong(
        "the offsets of results begin anew with each run",
        "emits.task",
        '_numbered(partition, rows.reached("emitted"))',
        "_numbered(partition, np.full(rows.partitions, NOTHING))",
    ),
    Wrong(
        "the stream time of a result's store begins anew with each run",
        "emits.joining",
        'empty(rows.partitions)._replace(reached=rows.reached("reached result"))',
        "empty(rows.partitions)",
    ),
    Wrong(
        "windows are aggregated over all partitions",
        "emits.aggregating",
        "given[(rows.partition[given] == partition) & rows.passes[given]]",
        "given[rows.passes[given]]",
    ),
    Wrong(
        "a task with several partitions emits one after the other",
        "emits.form",
        '    by_cause = np.argsort(cause, kind="stable")\n\n    def column',
        "    by_cause = np.arange(len(cause))\n\n    def column",
    ),
    Wrong(
        "processing order is by timestamp, against offsets",
        "corrected.order",
        'F.max(F.unix_millis("timestamp")).over(so_far).alias("reached")',
        'F.unix_millis("timestamp").alias("reached")',
    ),
    Wrong(
        "processing order does not know runs",
        "corrected.order",
        'F.lit(0).cast("long") if waits else F.col("run")',
        'F.lit(0).cast("long")',
    ),
    Wrong(
        "a task that waits begins anew with each run",
        "corrected.order",
        'F.lit(0).cast("long") if waits else F.col("run")',
        'F.col("run")',
    ),
    Wrong(
        "processing order is by the largest timestamp of all partitions",
        "corrected.order",
        'Window.partitionBy("partition", run).orderBy(',
        "Window.partitionBy(run).orderBy(",
    ),
    Wrong(
        "ties go by partition before topic",
        "corrected.order",
        '            F.lit(topic).alias("topic"),\n            F.col("partition"),\n',
        '            F.col("partition"),\n            F.lit(topic).alias("topic"),\n',
    ),
)
