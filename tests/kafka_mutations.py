"""Deliberate wrong readings of the operators of the `kafka` reading, rule by rule of the vectors' README."""

from __future__ import annotations

from trials import Wrong

WRONG = (
    Wrong(
        "a put at T - R is rejected",
        "streams.versioned",
        "if time[slot] < store.stream_time[home] - retention:",
        "if time[slot] <= store.stream_time[home] - retention:",
    ),
    Wrong(
        "tombstones do not move stream time",
        "streams.versioned",
        "store.stream_time[home] = max(store.stream_time[home], time[slot])",
        "store.stream_time[home] = max(store.stream_time[home], time[slot] if value != NOTHING else NOTHING)",
    ),
    Wrong(
        "a put's return code is the time of the latest version",
        "streams.versioned",
        "return int(time[following])",
        "return int(time[latest if latest != NOTHING else following])",
    ),
    Wrong(
        "a put at the latest's own time is out of order",
        "streams.versioned",
        "if latest == NOTHING or slot < latest:",
        "if latest == NOTHING or slot <= latest:",
    ),
    Wrong(
        "no tombstone is forgotten",
        "streams.versioned",
        "    # At the latest's own time",
        "    if value == NOTHING:\n        _add_boundary(store, slot, NOTHING)\n    # At the latest's own time",
    ),
    Wrong(
        "every tombstone at the latest's own time is forgotten",
        "streams.versioned",
        "        _add_boundary(store, slot, NOTHING)\n    # At",
        "    # At",
    ),
    Wrong(
        "a look-up at T - R finds no older version",
        "streams.versioned",
        "if store.slots.time[slot] < store.stream_time[store.home[key]] - retention:",
        "if store.slots.time[slot] <= store.stream_time[store.home[key]] - retention:",
    ),
    Wrong(
        "a look-up past T - R misses the latest version too",
        "streams.versioned",
        "if latest != NOTHING and latest <= slot:",
        ("if NOTHING != latest <= slot and store.slots.time[slot] >= store.stream_time[store.home[key]] - retention:"),
    ),
    Wrong(
        "a look-up past T - R finds what is still kept",
        "streams.versioned",
        "if store.slots.time[slot] < store.stream_time[store.home[key]] - retention:",
        "if store.slots.time[slot] < NOTHING:",
    ),
    Wrong(
        "an older boundary loses its value to the end of another version",
        "streams.versioned",
        "    if not is_taken(store.boundaries, slot):\n        take_slot",
        "    if True:\n        take_slot",
    ),
    Wrong("what is valid at T - R is not kept", "streams.versioned", "if time <= bound:\n", "if time <= bound + 1:\n"),
    Wrong(
        "tombstones are not kept",
        "streams.versioned",
        "if time >= bound or store.value[slot] != NOTHING:",
        "if store.value[slot] != NOTHING:",
    ),
    Wrong(
        "a store that is not versioned refuses what is older",
        "streams.stores",
        "            held_value[k] = value[n]\n",
        "            if time[n] < at:\n                continue\n            held_value[k] = value[n]\n",
    ),
    Wrong(
        "a tombstone that a filter leaves out moves the time of its store",
        "streams.stores",
        (
            "            answers[n, 0] = LEFT_OUT\n        elif what[n] <= PUT_UNLESS_ABSENT:\n            "
            "answers[n, 0] = put_version("
        ),
        (
            "            put_version(store, key[n], slot[n], value[n], retention)\n            answers[n, 0] = "
            "LEFT_OUT\n        elif what[n] <= PUT_UNLESS_ABSENT:\n            answers[n, 0] = put_version("
        ),
    ),
    Wrong(
        "the value before a put is the one valid at its time",
        "streams.stores",
        "if what[n] == GET_AT:",
        "if what[n] != GET:",
    ),
    Wrong(
        "what a store rejects is passed on",
        "streams.tables",
        "passed = (code != REJECTED) & (code != LEFT_OUT)",
        "passed = code != LEFT_OUT",
    ),
    Wrong("nothing is out of order", "streams.tables", "latest=code < 0", "latest=code < 2**61"),
    Wrong("a filter leaves out tombstones whatever it knows", "streams.tables", " | (not leaves_out)", ""),
    Wrong("a filter leaves out no tombstone", "streams.tables", " | (not leaves_out)", " | True"),
    Wrong(
        "a filter does not ask for what was before",
        "streams.tables",
        "OLD_VALUES_IF_KNOWN if step.filters else NO_OLD_VALUES",
        "NO_OLD_VALUES",
    ),
    Wrong(
        "a filter that asks makes the source keep a store",
        "streams.tables",
        "known = source_materialized or requested[0] == OLD_VALUES_MATERIALIZED",
        "known = source_materialized or requested[0] != NO_OLD_VALUES",
    ),
    Wrong(
        "a filter on a versioned table leaves out tombstones",
        "streams.tables",
        " and knows and not versioned[number]",
        " and knows",
    ),
    Wrong(
        "a look-up misses the record before",
        "streams.tables",
        "np.concatenate((stored.order, order[with_key]))",
        "np.concatenate((stored.order, order[with_key] - 2))",
    ),
    Wrong(
        "a look-up finds what the filter has not let pass",
        "streams.tables",
        "np.append(table.passing, False)[matches[0]]",
        "np.append(table.passing | True, False)[matches[0]]",
    ),
    Wrong(
        "a left join takes events without a value",
        "streams.stream_table",
        "(events.value != NOTHING) & (",
        '((events.value != NOTHING) | (how == "left")) & (',
    ),
    Wrong(
        "an event meets the latest version, not the one of its time",
        "streams.stream_table",
        "home, events.timestamp)",
        "home)",
    ),
    Wrong("a left join drops events without a row", "streams.stream_table", ' | (how == "left")', ""),
    Wrong(
        "released only when S is past the grace period",
        "streams.join_buffer",
        "np.searchsorted(largest[1:] - grace, every.timestamp)",
        'np.searchsorted(largest[1:] - grace, every.timestamp, "right")',
    ),
    Wrong(
        "released by arrival before key",
        "streams.join_buffer",
        "np.lexsort((arrival, every.key, every.timestamp, at))",
        "np.lexsort((every.key, arrival, every.timestamp, at))",
    ),
    Wrong(
        "released by key before timestamp",
        "streams.join_buffer",
        "np.lexsort((arrival, every.key, every.timestamp, at))",
        "np.lexsort((arrival, every.timestamp, every.key, at))",
    ),
    Wrong(
        "an event with neither value nor a chance moves S",
        "streams.join_buffer",
        "records = records.take(records.value != NOTHING)",
        "records = records",
    ),
    Wrong(
        "a left join with a grace period drops null keys",
        "streams.join_buffer",
        (
            "    elif nameless.size:\n        failed = int(records.order[nameless[0]])\n        records = "
            "records.take(slice(nameless[0]))"
        ),
        "    else:\n        records = records.take(records.key != NOTHING)",
    ),
    Wrong(
        "S begins anew with each run",
        "streams.join_buffer",
        "np.append(state.largest, records.timestamp)",
        "np.append(NOTHING, records.timestamp)",
    ),
    Wrong("a result has the time of its record", "streams.table_table", "np.maximum(at, since)[merged]", "at[merged]"),
    Wrong(
        "records out of order trigger", "streams.table_table", "side.changes.where(side.changes.latest)", "side.changes"
    ),
    Wrong(
        "an inner join tells a tombstone only of what was there",
        "streams.table_table",
        "emits = (other != NOTHING) |",
        "emits = ((other != NOTHING) & ((own != NOTHING) | (before != NOTHING))) |",
    ),
    Wrong(
        "a left join tells of a right record without a left row",
        "streams.table_table",
        '"left": of_left, "outer": True}',
        '"left": True, "outer": True}',
    ),
    Wrong(
        "a right tombstone ends the row of a left join",
        "streams.table_table",
        '"left": ~of_left, "outer": True}',
        '"left": of_left, "outer": True}',
    ),
    Wrong(
        "a tombstone where there was no row is told",
        "streams.table_table",
        " & ((own != NOTHING) | (before != NOTHING))",
        "",
    ),
    Wrong("a left record's result has its own time", "streams.foreign_key", "at = max(time, other_time)", "at = time"),
    Wrong(
        "the tombstone of a foreign key given up has its record's time",
        "streams.foreign_key",
        "at = max(time, left_behind_time)",
        "at = time",
    ),
    Wrong(
        "a foreign key that stays without a right row gives a tombstone",
        "streams.foreign_key",
        "emits = other != NOTHING or moved",
        "emits = other != NOTHING or leaves != NOTHING",
    ),
    Wrong(
        "a foreign key that changes to one without a right row gives nothing",
        "streams.foreign_key",
        "emits = other != NOTHING or moved",
        "emits = other != NOTHING",
    ),
    Wrong(
        "a right tombstone leaves the left row in an inner join",
        "streams.foreign_key",
        "holds[place] if value != NOTHING or outer else NOTHING",
        "holds[place]",
    ),
    Wrong("left records out of order trigger", "streams.foreign_key", "left.where(left.latest)", "left"),
    Wrong(
        "right records out of order trigger",
        "streams.foreign_key",
        "right.changes.where(right.changes.latest)",
        "right.changes",
    ),
    Wrong(
        "a left join tells of a tombstone without a row",
        "streams.foreign_key",
        "emits = value != NOTHING or before != NOTHING",
        "emits = True",
    ),
    Wrong(
        "a subscription stays when the foreign key changes",
        "streams.foreign_key",
        "            release_slot(subscribed, leaves)\n",
        "            pass\n",
    ),
    Wrong(
        "votes out of order are counted",
        "streams.aggregates",
        "latest = changes.where(changes.latest)",
        "latest = changes",
    ),
    Wrong(
        "a result has the time of its record", "streams.aggregates", "if before != NOTHING and since > at:", "if False:"
    ),
    Wrong(
        "the new group's result comes before the old one's",
        "streams.aggregates",
        "(2 * leaves, 2 * joins + 1)",
        "(2 * leaves + 1, 2 * joins)",
    ),
    Wrong(
        "within a group subtraction and addition give a result each",
        "streams.aggregates",
        "(old != NOTHING) & (old != new)",
        "old != NOTHING",
    ),
    Wrong(
        "an update that the store rejects is passed on",
        "streams.aggregates",
        "rows[:, 0] != REJECTED",
        "rows[:, 0] != 1",
    ),
    Wrong(
        "null values of a stream are aggregated",
        "streams.aggregates",
        "valid = (key != NOTHING) & (value != NOTHING)",
        "valid = key != NOTHING",
    ),
    Wrong(
        "a subtraction from nothing makes an aggregate",
        "streams.aggregates",
        "if subtracted[n] != NOTHING and node != NOTHING:",
        "if subtracted[n] != NOTHING:",
    ),
    Wrong(
        "a window that ends at T - grace takes records",
        "streams.time_windows",
        "np.maximum(timestamp, closed) -",
        "np.maximum(timestamp, closed - 1) -",
    ),
    Wrong("windows before time 0", "streams.time_windows", "self.advance + 1, 0)", "self.advance + 1, -(2**40))"),
    Wrong(
        "a result has the time of its record",
        "streams.time_windows",
        "max(timestamps[place], timestamp[result])",
        "timestamp[result]",
    ),
    Wrong(
        "a reducer's first null is stored",
        "streams.time_windows",
        "stored == NOTHING and reduce and value[result] == NOTHING",
        "False",
    ),
    Wrong("null values are dropped", "streams.time_windows", "takes_nulls = True", "takes_nulls = False"),
    Wrong(
        "windows within their grace are not kept",
        "streams.time_windows",
        "> task.final_stream_time - self.grace",
        "> task.final_stream_time",
    ),
    Wrong(
        "a scan misses the windows at the edge of the retention",
        "streams.time_windows",
        "stored >= written - self.store_retention",
        "stored > written - self.store_retention",
    ),
    Wrong(
        "a record is late at T - grace",
        "streams.sliding_windows",
        "if moment + difference < close[record]:",
        "if moment + difference <= close[record]:",
    ),
    Wrong(
        "a window that ends at T - grace takes no records",
        "streams.sliding_windows",
        "store.start[last] + difference >= close",
        "store.start[last] + difference > close",
    ),
    Wrong("null values are aggregated", "streams.sliding_windows", "takes_nulls = False", "takes_nulls = True"),
    Wrong(
        "the store shows a window one retention behind",
        "streams.sliding_windows",
        "self.store_retention if task.scans else self.store_retention - 1",
        "self.store_retention",
    ),
    Wrong(
        "the store of on_window_close has the reach of the other",
        "streams.sliding_windows",
        "self.store_retention if task.scans else self.store_retention - 1",
        "self.store_retention - 1",
    ),
    Wrong(
        "the default retention is one difference and the grace",
        "streams.sliding_windows",
        "2 * self.difference + self.grace",
        "self.difference + self.grace",
    ),
    Wrong("early records have windows like others", "streams.sliding_windows", "if moment >= difference:", "if True:"),
    Wrong(
        "no window just after the record before",
        "streams.sliding_windows",
        "previous + 1 + difference >= max(moment, close)",
        "previous + 1 + difference > max(moment, close)",
    ),
    Wrong(
        "the window just after a record takes the record",
        "streams.sliding_windows",
        (
            "store.node[after], store.timestamp[after], True)\n    return changes, count\n\n\n@compile_loop\n"
            "def _change_early"
        ),
        (
            "store.node[after], store.timestamp[after], False)\n    return changes, count\n\n\n@compile_loop\n"
            "def _change_early"
        ),
    ),
    Wrong(
        "windows there already come by ascending start",
        "streams.sliding_windows",
        "    exists = is_taken(store.taken, left) and store.start[left] >= reach\n",
        (
            "    changes[:count] = changes[:count][::-1].copy()\n"
            "    exists = is_taken(store.taken, left) and store.start[left] >= reach\n"
        ),
    ),
    Wrong(
        "a session that ends at T - grace - gap takes no records",
        "streams.session_windows",
        "if end < close[record]:",
        "if end <= close[record]:",
    ),
    Wrong(
        "a record is late by itself, not by its session",
        "streams.session_windows",
        "if end < close[record]:",
        "if moment < close[record]:",
    ),
    Wrong(
        "no tombstone where a session keeps its bounds",
        "streams.session_windows",
        "        if start != end:\n",
        "        if start != end and not (met == 1 and place != own[record] and starts[place] == start):\n",
    ),
    Wrong(
        "a tombstone for what becomes [t, t] again",
        "streams.session_windows",
        "        if start != end:\n",
        "        if met:\n",
    ),
    Wrong(
        "sessions a gap apart do not merge",
        "streams.session_windows",
        "max(moment - gap, written - behind)",
        "max(moment - gap + 1, written - behind)",
    ),
    Wrong(
        "sessions out of the store's reach merge",
        "streams.session_windows",
        "max(moment - gap, written - behind)",
        "moment - gap",
    ),
    Wrong(
        "the store shows a session one retention behind",
        "streams.session_windows",
        "self.store_retention - 1",
        "self.store_retention",
    ),
    Wrong(
        "a tombstone has the time of its record",
        "streams.session_windows",
        "ends[session], NOTHING, ends[session]",
        "ends[session], NOTHING, moment",
    ),
    Wrong("null values are dropped", "streams.session_windows", "takes_nulls = True", "takes_nulls = False"),
    Wrong(
        "segments are as long as half the retention, however short that is",
        "streams.session_windows",
        "max(self.store_retention // 2, 60_000)",
        "max(self.store_retention // 2, 1)",
    ),
    Wrong(
        "suppression lets out a window only past its grace",
        "streams.emit_strategy",
        "largest, windows.lag)",
        "largest, windows.lag + 1)",
    ),
    Wrong(
        "suppressed results come by key before end",
        "streams.emit_strategy",
        "np.lexsort((rows.start[out], rows.key[out], rows.end[out], at[out]))",
        "np.lexsort((rows.start[out], rows.end[out], rows.key[out], at[out]))",
    ),
    Wrong("suppression emits tombstones", "streams.emit_strategy", "replaced | (rows.node == NOTHING)", "replaced"),
    Wrong(
        "suppression emits what was replaced",
        "streams.emit_strategy",
        "replaced | (rows.node == NOTHING)",
        "rows.node == NOTHING",
    ),
    Wrong(
        "a scan lets out a window that still takes records", "streams.emit_strategy", "int(windows.ends_inclusive)", "0"
    ),
    Wrong(
        "a scan finds windows that the store has dropped",
        "streams.emit_strategy",
        '    out = out[windows.is_retained(stored[out], written[np.searchsorted(results.record, at[out], "right")])]\n',
        "",
    ),
    Wrong(
        "scanned results come by key before start",
        "streams.emit_strategy",
        "np.lexsort((rows.key[out], rows.start[out], stored[out], at[out]))",
        "np.lexsort((rows.start[out], stored[out], rows.key[out], at[out]))",
    ),
    Wrong(
        "a suppressed result has the headers of the record that lets it out",
        "streams.emit_strategy",
        "return EmittedWindows(cause, *WaitingWindows(*(column[out] for column in rows))), _select_waiting",
        "return EmittedWindows(cause, *WaitingWindows(*(column[out] for column in "
        "rows))._replace(headers=cause)), _select_waiting",
    ),
    Wrong(
        "null keys move T",
        "streams.emit_strategy",
        "taken = records.key != NOTHING\n",
        "taken = records.key >= NOTHING\n",
    ),
    Wrong(
        "T and W begin anew with each run",
        "streams.windowed",
        "np.maximum.accumulate(np.append(before, values))[1:]",
        "np.maximum.accumulate(values)",
    ),
    Wrong(
        "what waits is taken for what is in the store",
        "streams.windowed",
        "np.split(row, [len(state.windows.key)])",
        "np.split(row, [len(state.waiting.key)])",
    ),
    Wrong(
        "an update waits until P is past the limit",
        "streams.suppress",
        "np.searchsorted(largest[1:] - limit, place)",
        'np.searchsorted(largest[1:] - limit, place, "right")',
    ),
    Wrong(
        "a later update changes the place",
        "streams.suppress",
        "np.lexsort((every.key[final], place[first], cause))",
        "np.lexsort((every.key[final], every.timestamp[final], cause))",
    ),
    Wrong(
        "tombstones do not come out",
        "streams.suppress",
        "out = cause < updates.key.size",
        "out = (cause < updates.key.size) & (every.value[final] != NOTHING)",
    ),
    Wrong(
        "P begins anew with each run",
        "streams.suppress",
        "np.append(state.largest, updates.timestamp)",
        "np.append(NOTHING, updates.timestamp)",
    ),
    Wrong(
        "a window without its upper bound",
        "streams.stream_stream",
        "tables.time_at[at] <= upper",
        "tables.time_at[at] < upper",
    ),
    Wrong(
        "a window turned round",
        "streams.stream_stream",
        "back, ahead = (window.after, window.before), (window.before, window.after)",
        "back, ahead = (window.before, window.after), (window.after, window.before)",
    ),
    Wrong(
        "the other side is in reach a millisecond longer",
        "streams.stream_stream",
        " + window.grace) + 1",
        " + window.grace)",
    ),
    Wrong(
        "the reach has no grace",
        "streams.stream_stream",
        "(window.before + window.after + window.grace) + 1",
        "(window.before + window.after) + 1",
    ),
    Wrong(
        "dropped records do not move T",
        "streams.stream_stream",
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
    Wrong("m is the latest that waits", "streams.stream_stream", "min(noted, now)", "max(noted, now)"),
    Wrong(
        "a late record releases what waits",
        "streams.stream_stream",
        "if now == stream_time and may_release:",
        "if may_release:",
    ),
    Wrong(
        "nothing is noted, each record looks at what waits",
        "streams.stream_stream",
        "may_release = noted != NOTHING and noted + ahead[side] + window.grace < stream_time",
        "may_release = True",
    ),
    Wrong(
        "a record whose window ends at T does not wait",
        "streams.stream_stream",
        "if upper < stream_time:",
        "if upper <= stream_time:",
    ),
    Wrong(
        "an outer side drops null keys",
        "streams.stream_stream",
        "        if tables.key[record] == NOTHING:\n            if outer[side]:",
        "        if tables.key[record] == NOTHING:\n            if False:",
    ),
    Wrong(
        "a pair's time is the record's",
        "streams.stream_stream",
        "row[4] = max(row[4], tables.timestamp[other])",
        "pass",
    ),
    Wrong(
        "released by key before side",
        "streams.stream_stream",
        "np.lexsort((key, side, timestamp))",
        "np.lexsort((side, key, timestamp))",
    ),
    Wrong(
        "what has found a match still waits",
        "streams.stream_stream",
        "            if tables.waiting[other]:\n",
        "            if False:\n",
    ),
    Wrong(
        "released when its window and grace have just ended",
        "streams.stream_stream",
        "tables.timestamp[tables.record_next[heads[of]]] < closed[of]",
        "tables.timestamp[tables.record_next[heads[of]]] <= closed[of]",
    ),
    Wrong(
        "a release looks at no entry more when both sides are open",
        "streams.stream_stream",
        "            looked_at = min(beyond) if min(beyond) != NOTHING else max(beyond)\n",
        "            pass\n",
    ),
    Wrong(
        "records at the edge of the reach are not kept",
        "streams.stream_stream",
        "in_reach = timestamp >=",
        "in_reach = timestamp >",
    ),
    Wrong(
        "a place at the very time is passed over",
        "streams.slot_index",
        "keys[middle] == key and times[middle] < time",
        "keys[middle] == key and times[middle] <= time",
    ),
    Wrong(
        "a place left takes its neighbours along",
        "streams.slot_index",
        "while node > 1 and not taken[node ^ 1]:",
        "while node > 1:",
    ),
    Wrong("a table that grows loses its rows", "common.jit", "    wider[:used] = rows[:used]\n", ""),
    Wrong(
        "a table has room for one row too many",
        "common.jit",
        "if used < rows.shape[0]:",
        "if used <= rows.shape[0]:",
    ),
    Wrong(
        "a query misses the version that begins at its end",
        "hindcast_conformance.versioned_store",
        'v["validFrom"] <= end',
        'v["validFrom"] < end',
    ),
    Wrong(
        "a query meets the version that ends at its start",
        "hindcast_conformance.versioned_store",
        'v["validTo"] > start',
        'v["validTo"] >= start',
    ),
    Wrong(
        "a query to T - R has the latest version only",
        "hindcast_conformance.versioned_store",
        "end < bound:",
        "end <= bound:",
    ),
    Wrong(
        "a query finds versions that end in a later segment",
        "hindcast_conformance.versioned_store",
        " and (end is None or segment <= end // self.interval)",
        "",
    ),
    Wrong(
        "a grace period as long as the retention is refused",
        "contract.semantics_checks",
        "grace > retention:",
        "grace >= retention:",
    ),
    Wrong(
        "a table that is not versioned may have a grace period",
        "contract.semantics_checks",
        "    if versioned:\n",
        "    if True:\n",
    ),
    Wrong(
        "versions are held back",
        "contract.semantics_checks",
        "elif contract.find_versioning(view.first_input)[0]:",
        "elif False:",
    ),
    Wrong(
        "null values are counted", "streams.measures", "np.append(counted, False)", "np.append(counted, True) | True"
    ),
    Wrong(
        "rows without a value are not counted",
        "streams.measures",
        'if part.function == "count" else np.ones(len(arguments) + 1, np.bool_)',
        "if True else counted",
    ),
    Wrong(
        "the subtractor adds",
        "streams.measures",
        "numbers[second] if what == ADD else -numbers[second]",
        "numbers[second]",
    ),
    Wrong(
        "a sum of no number is 0",
        "streams.measures",
        "pa.array(total, type=kind, mask=~is_number)",
        "pa.array(total, type=kind)",
    ),
    Wrong("sums wrap round", "streams.measures", "raise OverflowError(_OVERFLOW)", "pass"),
    Wrong(
        "a kept sum of no number is 0",
        "streams.measures",
        "= state[first], state_is_number[first]",
        "= state[first], True",
    ),
    Wrong("the largest is the least", "streams.measures", 'sign = 1 if part.function == "min" else -1', "sign = 1"),
    Wrong(
        "an average is over null values too", "streams.measures", '"avg": ("sum", "count")', '"avg": ("sum", "rows")'
    ),
    Wrong("decimals of more than 18 digits are cut", "streams.measures", "raise OverflowError(_INEXACT)", "pass"),
    Wrong(
        "words are big-endian",
        "streams.murmur2",
        "np.uint64(8 * byte)\n            part =",
        "np.uint64(24 - 8 * byte)\n            part =",
    ),
    Wrong("the hash is not made positive", "streams.murmur2", "np.uint64(0x7FFFFFFF)", "whole"),
    Wrong("a rest of no bytes is mixed in", "streams.murmur2", "        if rest:\n", "        if True:\n"),
    Wrong(
        "an array's offset is passed over", "streams.murmur2", "[keys.offset :][: len(keys) + 1]", "[: len(keys) + 1]"
    ),
    Wrong(
        "keys sort by their first appearance",
        "streams.task_rows",
        "rank[ascending] = np.arange(len(ascending))",
        "rank[:-1] = np.arange(len(ascending))",
    ),
    Wrong(
        "results of one cause have the same turn",
        "streams.task_rows",
        "flat[last] = np.arange(len(causes)) - begun",
        "flat[last] = 0",
    ),
    Wrong(
        "all keys are of the first partition",
        "streams.task_rows",
        "np.flatnonzero(is_used) % width",
        "np.flatnonzero(is_used) * 0",
    ),
    Wrong(
        "the offsets of results begin anew with each run",
        "streams.task",
        '_assign_offsets(partition, rows.read_clock("emitted"))',
        "_assign_offsets(partition, np.full(rows.partition_count, NOTHING))",
    ),
    Wrong(
        "the stream time of a result's store begins anew with each run",
        "streams.join_processors",
        'empty_store_state(rows.partition_count)._replace(stream_time=rows.read_clock("reached result"))',
        "empty_store_state(rows.partition_count)",
    ),
    Wrong(
        "windows are aggregated over all partitions",
        "streams.aggregate_processors",
        "numbers[(rows.partition[numbers] == partition) & rows.passes[numbers]]",
        "numbers[rows.passes[numbers]]",
    ),
    Wrong(
        "a task with several partitions emits one after the other",
        "streams.spec",
        '    by_cause = np.argsort(cause, kind="stable")\n\n    def column',
        "    by_cause = np.arange(len(cause))\n\n    def column",
    ),
    Wrong(
        "processing order is by timestamp, against offsets",
        "bitemporal.processing_order",
        'F.max(F.unix_millis("timestamp")).over(so_far).alias("reached")',
        'F.unix_millis("timestamp").alias("reached")',
    ),
    Wrong(
        "processing order does not know runs",
        "bitemporal.processing_order",
        'F.lit(0).cast("long") if waits else F.col("run")',
        'F.lit(0).cast("long")',
    ),
    Wrong(
        "a task that waits begins anew with each run",
        "bitemporal.processing_order",
        'F.lit(0).cast("long") if waits else F.col("run")',
        'F.col("run")',
    ),
    Wrong(
        "processing order is by the largest timestamp of all partitions",
        "bitemporal.processing_order",
        'Window.partitionBy("partition", run).orderBy(',
        "Window.partitionBy(run).orderBy(",
    ),
    Wrong(
        "ties go by partition before topic",
        "bitemporal.processing_order",
        '            F.lit(topic).alias("topic"),\n            F.col("partition"),\n',
        '            F.col("partition"),\n            F.lit(topic).alias("topic"),\n',
    ),
)
