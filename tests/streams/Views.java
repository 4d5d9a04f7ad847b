import com.fasterxml.jackson.databind.JsonNode;
import java.time.Duration;
import java.util.LinkedHashMap;
import java.util.Map;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.JoinWindows;
import org.apache.kafka.streams.kstream.Joined;
import org.apache.kafka.streams.kstream.KGroupedStream;
import org.apache.kafka.streams.kstream.KGroupedTable;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.StreamJoined;
import org.apache.kafka.streams.kstream.Suppressed;
import org.apache.kafka.streams.kstream.ValueJoiner;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.Stores;

/**
 * An operation `views` as a topology: topics, and views of them and of each other, in the order in which the calls of the
 * DSL are made. Every view writes `out-(name)`. Values are numbers; the README beside the vectors has the format.
 */
final class Views {
    static final String OUTPUT = "out-";

    private static final Serde<String> KEY = Serdes.String();
    private static final Serde<Object> VALUE = Json.SERDE;
    private static final Consumed<String, Object> CONSUMED = Consumed.with(KEY, VALUE);
    private static final Grouped<String, Object> GROUPED = Grouped.with(KEY, VALUE);
    private static final ValueJoiner<Object, Object, Object> PAIR = (left, right) -> 100 * number(left) + number(right);

    private final StreamsBuilder builder = new StreamsBuilder();
    private final Map<String, KStream<String, Object>> streams = new LinkedHashMap<>();
    private final Map<String, KTable<String, Object>> tables = new LinkedHashMap<>();

    private Views() {}

    static boolean areIn(JsonNode operation) {
        return operation.get("type").asText().equals("views");
    }

    static Topology of(JsonNode operation, String prefix) {
        Views views = new Views();
        operation.get("topics").fields().forEachRemaining(topic -> views.source(topic.getKey(), topic.getValue(), prefix));
        for (JsonNode view : operation.get("views")) {
            views.add(view);
            views.write(view.get("name").asText(), prefix);
        }
        return views.builder.build();
    }

    private void source(String name, JsonNode topic, String prefix) {
        if (topic.get("read").asText().equals("stream")) {
            streams.put(name, builder.stream(prefix + name, CONSUMED));
        } else {
            tables.put(name, builder.table(prefix + name, CONSUMED, store(name, topic)));
        }
    }

    private void write(String name, String prefix) {
        KStream<String, Object> stream = streams.containsKey(name) ? streams.get(name) : tables.get(name).toStream();
        stream.to(prefix + OUTPUT + name, Produced.with(KEY, VALUE));
    }

    private void add(JsonNode view) {
        String name = view.get("name").asText();
        String first = view.get("of").get(0).asText();
        String second = view.get("of").path(1).asText();
        boolean isStream = streams.containsKey(first);
        switch (view.get("op").asText()) {
            case "filter" -> {
                if (isStream) {
                    streams.put(name, streams.get(first).filter((key, value) -> passes(view, value)));
                } else {
                    tables.put(name, tables.get(first).filter((key, value) -> passes(view, value)));
                }
            }
            case "map" -> {
                if (isStream) {
                    streams.put(name, streams.get(first).mapValues(value -> multiplied(view, value)));
                } else {
                    tables.put(name, tables.get(first).mapValues(value -> multiplied(view, value)));
                }
            }
            case "suppress" -> tables.put(name, tables.get(first).suppress(
                    Suppressed.untilTimeLimit(millis(view, "timeLimitMs"), Suppressed.BufferConfig.unbounded())));
            case "aggregate" -> tables.put(name, isStream ? ofStream(view, first) : ofTable(view, first));
            case "join" -> {
                if (!isStream) {
                    tables.put(name, view.has("by") ? byForeignKey(view, first, second) : byKey(view, first, second));
                } else if (streams.containsKey(second)) {
                    streams.put(name, ofStreams(view, first, second));
                } else {
                    streams.put(name, view.has("by") ? byAnotherKey(view, first, second) : byItsKey(view, first, second));
                }
            }
            default -> throw new IllegalArgumentException("no such view: " + view);
        }
    }

    private KTable<String, Object> ofStream(JsonNode view, String stream) {
        KGroupedStream<String, Object> grouped = view.has("by")
                ? streams.get(stream).groupBy((key, value) -> named(view, value), GROUPED)
                : streams.get(stream).groupByKey(GROUPED);
        return isCount(view)
                ? untyped(grouped.count(ofCounts(result(view))))
                : grouped.reduce((sum, value) -> number(sum) + number(value), result(view));
    }

    private KTable<String, Object> ofTable(JsonNode view, String table) {
        KGroupedTable<String, Object> grouped = view.has("by")
                ? tables.get(table).groupBy((key, value) -> KeyValue.pair(named(view, value), value), GROUPED)
                : tables.get(table).groupBy(KeyValue::pair, GROUPED);
        return isCount(view)
                ? untyped(grouped.count(ofCounts(result(view))))
                : grouped.reduce(
                        (sum, value) -> number(sum) + number(value),
                        (sum, value) -> number(sum) - number(value),
                        result(view));
    }

    private KTable<String, Object> byKey(JsonNode view, String left, String right) {
        KTable<String, Object> it = tables.get(left);
        KTable<String, Object> other = tables.get(right);
        var store = view.has("materialized") ? result(view) : null;
        return switch (view.get("join").asText()) {
            case "inner" -> store == null ? it.join(other, PAIR) : it.join(other, PAIR, store);
            case "left" -> store == null ? it.leftJoin(other, PAIR) : it.leftJoin(other, PAIR, store);
            case "outer" -> store == null ? it.outerJoin(other, PAIR) : it.outerJoin(other, PAIR, store);
            default -> throw new IllegalArgumentException("no such join: " + view);
        };
    }

    private KTable<String, Object> byForeignKey(JsonNode view, String left, String right) {
        var store = result(view);
        return isInner(view)
                ? tables.get(left).join(tables.get(right), value -> named(view, value), PAIR, store)
                : tables.get(left).leftJoin(tables.get(right), value -> named(view, value), PAIR, store);
    }

    private KStream<String, Object> byItsKey(JsonNode view, String stream, String table) {
        Joined<String, Object, Object> joined = Joined.with(KEY, VALUE, VALUE);
        if (view.has("graceMs")) {
            joined = joined.withGracePeriod(millis(view, "graceMs"));
        }
        return isInner(view)
                ? streams.get(stream).join(tables.get(table), PAIR, joined)
                : streams.get(stream).leftJoin(tables.get(table), PAIR, joined);
    }

    /** The event goes where the row is, and gets its own key back afterwards. */
    private KStream<String, Object> byAnotherKey(JsonNode view, String stream, String table) {
        KStream<String, Object> sent = streams.get(stream).map((key, value) -> {
            Map<String, Object> event = new LinkedHashMap<>();
            event.put("key", key);
            event.put("value", value);
            return KeyValue.pair(named(view, value), (Object) event);
        });
        Joined<String, Object, Object> joined = Joined.with(KEY, VALUE, VALUE);
        ValueJoiner<Object, Object, Object> keeping = (event, row) -> {
            Map<String, Object> result = new LinkedHashMap<>();
            result.put("key", ((Map<?, ?>) event).get("key"));
            result.put("value", PAIR.apply(((Map<?, ?>) event).get("value"), row));
            return result;
        };
        KStream<String, Object> met = isInner(view)
                ? sent.join(tables.get(table), keeping, joined)
                : sent.leftJoin(tables.get(table), keeping, joined);
        return met.map((key, result) ->
                KeyValue.pair((String) ((Map<?, ?>) result).get("key"), (Object) ((Map<?, ?>) result).get("value")));
    }

    private KStream<String, Object> ofStreams(JsonNode view, String left, String right) {
        JoinWindows windows = JoinWindows.ofTimeDifferenceAndGrace(millis(view, "beforeMs"), millis(view, "graceMs"))
                .after(millis(view, "afterMs"));
        StreamJoined<String, Object, Object> joined = StreamJoined.with(KEY, VALUE, VALUE);
        KStream<String, Object> it = streams.get(left);
        KStream<String, Object> other = streams.get(right);
        return switch (view.get("join").asText()) {
            case "inner" -> it.join(other, PAIR, windows, joined);
            case "left" -> it.leftJoin(other, PAIR, windows, joined);
            case "outer" -> it.outerJoin(other, PAIR, windows, joined);
            default -> throw new IllegalArgumentException("no such join: " + view);
        };
    }

    /** The key that a value names: one of as many as `by` has. */
    private static String named(JsonNode view, Object value) {
        JsonNode keys = view.get("by");
        return keys.get((int) (number(value) % keys.size())).asText();
    }

    private static boolean passes(JsonNode view, Object value) {
        JsonNode predicate = view.get("predicate");
        return predicate.get("type").asText().equals("even")
                ? number(value) % 2 == 0
                : number(value) >= predicate.get("value").asLong();
    }

    private static Object multiplied(JsonNode view, Object value) {
        return value == null ? null : number(value) * view.get("multiplyBy").asLong();
    }

    private static boolean isInner(JsonNode view) {
        return view.get("join").asText().equals("inner");
    }

    private static boolean isCount(JsonNode view) {
        return view.get("aggregation").asText().equals("count");
    }

    private static long number(Object value) {
        return value == null ? 0 : ((Number) value).longValue();
    }

    private static Duration millis(JsonNode spec, String field) {
        return Duration.ofMillis(spec.get(field).asLong());
    }

    private static Materialized<String, Object, KeyValueStore<Bytes, byte[]>> result(JsonNode view) {
        return store(view.get("name").asText(), view.path("materialized"));
    }

    private static Materialized<String, Object, KeyValueStore<Bytes, byte[]>> store(String name, JsonNode spec) {
        Materialized<String, Object, KeyValueStore<Bytes, byte[]>> store = spec.path("versioned").asBoolean()
                ? Materialized.as(Stores.persistentVersionedKeyValueStore(name, millis(spec, "historyRetentionMs")))
                : Materialized.as(name);
        return store.withKeySerde(KEY).withValueSerde(VALUE);
    }

    @SuppressWarnings("unchecked")
    private static Materialized<String, Long, KeyValueStore<Bytes, byte[]>> ofCounts(
            Materialized<String, ?, KeyValueStore<Bytes, byte[]>> store) {
        return (Materialized<String, Long, KeyValueStore<Bytes, byte[]>>) store;
    }

    @SuppressWarnings("unchecked")
    private static KTable<String, Object> untyped(KTable<String, ?> table) {
        return (KTable<String, Object>) table;
    }
}
