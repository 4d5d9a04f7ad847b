import com.fasterxml.jackson.databind.JsonNode;
import java.time.Duration;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.function.Function;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.serialization.StringSerializer;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.common.utils.Utils;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.kstream.Aggregator;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.EmitStrategy;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.JoinWindows;
import org.apache.kafka.streams.kstream.Joined;
import org.apache.kafka.streams.kstream.KGroupedStream;
import org.apache.kafka.streams.kstream.KGroupedTable;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Merger;
import org.apache.kafka.streams.kstream.Predicate;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.Reducer;
import org.apache.kafka.streams.kstream.SessionWindowedKStream;
import org.apache.kafka.streams.kstream.SessionWindows;
import org.apache.kafka.streams.kstream.SlidingWindows;
import org.apache.kafka.streams.kstream.StreamJoined;
import org.apache.kafka.streams.kstream.Suppressed;
import org.apache.kafka.streams.kstream.Suppressed.BufferConfig;
import org.apache.kafka.streams.kstream.TimeWindowedKStream;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.kstream.ValueJoiner;
import org.apache.kafka.streams.kstream.Windowed;
import org.apache.kafka.streams.processor.StateStore;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.SessionStore;
import org.apache.kafka.streams.state.Stores;
import org.apache.kafka.streams.state.VersionedBytesStoreSupplier;
import org.apache.kafka.streams.state.WindowStore;

/**
 * An operation of the vectors' format as a topology of the DSL: it reads the topics it names, and writes `output`.
 *
 * <p>With one field more: `valueField`, of aggregates of streams, the field of a value that is aggregated.
 */
final class Topologies {
    static final String OUTPUT = "output";

    private static final Serde<String> KEY = Serdes.String();
    private static final Serde<Object> VALUE = Json.SERDE;
    private static final Consumed<String, Object> CONSUMED = Consumed.with(KEY, VALUE);
    private static final Grouped<String, Object> GROUPED = Grouped.with(KEY, VALUE);
    private static final ValueJoiner<Object, Object, Object> PAIR = Topologies::pair;
    private static final Reducer<Object> PLUS = (sum, value) -> number(sum) + number(value);
    private static final Reducer<Object> MINUS = (sum, value) -> number(sum) - number(value);
    private static final Aggregator<String, Object, Object> ADDED = (key, value, trace) -> trace + "+" + value;
    private static final Aggregator<String, Object, Object> SUBTRACTED = (key, value, trace) -> trace + "-" + value;
    private static final Merger<String, Object> MERGED = (key, one, other) -> "(" + one + "&" + other + ")";
    private static final String NO_TRACE = "0";

    private final StreamsBuilder builder = new StreamsBuilder();
    private final JsonNode operation;
    private final String prefix;

    private Topologies(JsonNode operation, String prefix) {
        this.operation = operation;
        this.prefix = prefix;
    }

    /** The topology of an operation; each of its topics, the output as well, is called `prefix` and its name. */
    static Topology of(JsonNode operation, String prefix) {
        return new Topologies(operation, prefix).build();
    }

    static boolean isWindowed(JsonNode operation) {
        return operation.get("type").asText().equals("windowed_aggregate");
    }

    private Topology build() {
        String type = operation.get("type").asText();
        switch (type) {
            case "store" -> store();
            case "stream_table_join" -> write(streamTableJoin());
            case "table_table_join" -> write(tableTableJoin().toStream());
            case "foreign_key_join" -> write(foreignKeyJoin().toStream());
            case "table_aggregate" -> write(tableAggregate().toStream());
            case "stream_aggregate" -> write(streamAggregate().toStream());
            case "windowed_aggregate" -> writeWindowed(suppressed(windowedAggregate()).toStream());
            case "table_transform" -> write(table("table").toStream());
            case "to_table" -> write(stream("stream").toTable(store("result", operation.get("materialized"))).toStream());
            case "stream_stream_join" -> write(streamStreamJoin());
            case "stream_global_table_join" -> write(streamGlobalTableJoin());
            default -> throw new IllegalArgumentException("no such operation: " + type);
        }
        return builder.build();
    }

    /** A store and nothing that writes to it; without a processor it would not be opened. */
    private void store() {
        builder.addStateStore(
                Stores.versionedKeyValueStoreBuilder(versioned("store", operation), KEY, VALUE).withLoggingDisabled());
        stream("stream").process(Idle::new, "store");
    }

    private static final class Idle implements Processor<String, Object, Void, Void> {
        @Override
        public void process(Record<String, Object> record) {}
    }

    private KStream<String, Object> stream(String topic) {
        return builder.stream(prefix + topic, CONSUMED);
    }

    private KGroupedStream<String, Object> grouped() {
        KStream<String, Object> stream = stream("stream");
        if (operation.has("valueField")) {
            String name = operation.get("valueField").asText();
            stream = stream.mapValues(value -> field(value, name));
        }
        return stream.groupByKey(GROUPED);
    }

    private KTable<String, Object> table(String topic) {
        JsonNode table = operation.get(topic);
        boolean hasStore = table.path("materialized").asBoolean(true);
        KTable<String, Object> result = hasStore
                ? builder.table(prefix + topic, CONSUMED, store(topic, table))
                : builder.table(prefix + topic, CONSUMED);
        int number = 0;
        for (JsonNode transform : table.path("transforms")) {
            number++;
            result = transformed(result, transform, topic + "-" + number);
        }
        return result;
    }

    private KTable<String, Object> transformed(KTable<String, Object> table, JsonNode transform, String name) {
        JsonNode spec = transform.get("materialized");
        Materialized<String, Object, KeyValueStore<Bytes, byte[]>> store = spec == null ? null : store(name, spec);
        String op = transform.get("op").asText();
        switch (op) {
            case "filter": {
                Predicate<String, Object> predicate = predicate(transform.get("predicate"));
                return store == null ? table.filter(predicate) : table.filter(predicate, store);
            }
            case "mapValues": {
                long factor = transform.get("multiplyBy").asLong();
                return store == null
                        ? table.mapValues(value -> (Object) (number(value) * factor))
                        : table.mapValues(value -> number(value) * factor, store);
            }
            case "toStreamToTable":
                return store == null ? table.toStream().toTable() : table.toStream().toTable(store);
            case "count":
                return counted(
                        table.groupBy(KeyValue::pair, GROUPED), store == null ? Materialized.with(KEY, VALUE) : store);
            case "suppressUntilTimeLimit":
                return table.suppress(
                        Suppressed.untilTimeLimit(millis(transform, "timeLimitMs"), BufferConfig.unbounded()));
            default:
                throw new IllegalArgumentException("no such transform: " + op);
        }
    }

    private KStream<String, Object> streamTableJoin() {
        KTable<String, Object> table = table("table");
        Joined<String, Object, Object> joined = Joined.with(KEY, VALUE, VALUE);
        if (operation.has("graceMs")) {
            joined = joined.withGracePeriod(millis(operation, "graceMs"));
        }
        return isInner() ? stream("stream").join(table, PAIR, joined) : stream("stream").leftJoin(table, PAIR, joined);
    }

    private KStream<String, Object> streamGlobalTableJoin() {
        var table = builder.globalTable(prefix + "table", CONSUMED, store("table", operation.get("table")));
        return stream("stream").join(table, (key, value) -> key, PAIR);
    }

    private KTable<String, Object> tableTableJoin() {
        KTable<String, Object> left = table("left");
        KTable<String, Object> right = table("right");
        var store = operation.has("materialized") ? store("result", operation.get("materialized")) : null;
        String join = operation.get("join").asText();
        return switch (join) {
            case "inner" -> store == null ? left.join(right, PAIR) : left.join(right, PAIR, store);
            case "left" -> store == null ? left.leftJoin(right, PAIR) : left.leftJoin(right, PAIR, store);
            case "outer" -> store == null ? left.outerJoin(right, PAIR) : left.outerJoin(right, PAIR, store);
            default -> throw new IllegalArgumentException("no such join: " + join);
        };
    }

    private KTable<String, Object> foreignKeyJoin() {
        KTable<String, Object> left = table("left");
        KTable<String, Object> right = table("right");
        String field = operation.get("foreignKeyField").asText();
        Function<Object, String> foreignKey = value -> (String) field(value, field);
        if (operation.has("materialized")) {
            var store = store("result", operation.get("materialized"));
            return isInner() ? left.join(right, foreignKey, PAIR, store) : left.leftJoin(right, foreignKey, PAIR, store);
        }
        return isInner() ? left.join(right, foreignKey, PAIR) : left.leftJoin(right, foreignKey, PAIR);
    }

    private KTable<String, Object> tableAggregate() {
        String key = operation.get("groupBy").get("keyField").asText();
        String value = operation.get("groupBy").get("valueField").asText();
        KGroupedTable<String, Object> grouped =
                table("table").groupBy((k, row) -> KeyValue.pair((String) field(row, key), field(row, value)), GROUPED);
        return switch (aggregation()) {
            case "count" -> counted(grouped, result());
            case "sum" -> grouped.reduce(PLUS, MINUS, result());
            case "trace" -> grouped.aggregate(() -> NO_TRACE, ADDED, SUBTRACTED, result());
            default -> throw new IllegalArgumentException("no such aggregation: " + aggregation());
        };
    }

    private KTable<String, Object> streamAggregate() {
        KGroupedStream<String, Object> grouped = grouped();
        return switch (aggregation()) {
            case "count" -> untyped(grouped.count(ofCounts(result())));
            case "sum" -> grouped.reduce(PLUS, result());
            case "trace" -> grouped.aggregate(() -> NO_TRACE, ADDED, result());
            default -> throw new IllegalArgumentException("no such aggregation: " + aggregation());
        };
    }

    private KTable<Windowed<String>, Object> windowedAggregate() {
        JsonNode window = operation.get("window");
        KGroupedStream<String, Object> grouped = grouped();
        Duration grace = millis(window, "graceMs");
        return switch (window.get("kind").asText()) {
            case "tumbling" -> inWindows(grouped.windowedBy(TimeWindows.ofSizeAndGrace(millis(window, "sizeMs"), grace)));
            case "hopping" -> inWindows(grouped.windowedBy(
                    TimeWindows.ofSizeAndGrace(millis(window, "sizeMs"), grace).advanceBy(millis(window, "advanceMs"))));
            case "sliding" -> inWindows(grouped.windowedBy(
                    SlidingWindows.ofTimeDifferenceAndGrace(millis(window, "timeDifferenceMs"), grace)));
            case "session" -> inSessions(grouped.windowedBy(
                    SessionWindows.ofInactivityGapAndGrace(millis(window, "inactivityGapMs"), grace)));
            default -> throw new IllegalArgumentException("no such window: " + window);
        };
    }

    private KTable<Windowed<String>, Object> inWindows(TimeWindowedKStream<String, Object> windowed) {
        Materialized<String, Object, WindowStore<Bytes, byte[]>> store = Materialized.with(KEY, VALUE);
        store = retained(store);
        TimeWindowedKStream<String, Object> emitting = isOnWindowClose()
                ? windowed.emitStrategy(EmitStrategy.onWindowClose())
                : windowed;
        return switch (aggregation()) {
            case "count" -> untyped(emitting.count(ofCounts(store)));
            case "sum" -> emitting.reduce(PLUS, store);
            case "trace" -> emitting.aggregate(() -> NO_TRACE, ADDED, store);
            default -> throw new IllegalArgumentException("no such aggregation: " + aggregation());
        };
    }

    private KTable<Windowed<String>, Object> inSessions(SessionWindowedKStream<String, Object> windowed) {
        Materialized<String, Object, SessionStore<Bytes, byte[]>> store = Materialized.with(KEY, VALUE);
        store = retained(store);
        SessionWindowedKStream<String, Object> emitting = isOnWindowClose()
                ? windowed.emitStrategy(EmitStrategy.onWindowClose())
                : windowed;
        return switch (aggregation()) {
            case "count" -> untyped(emitting.count(ofCounts(store)));
            case "sum" -> emitting.reduce(PLUS, store);
            case "trace" -> emitting.aggregate(() -> NO_TRACE, ADDED, MERGED, store);
            default -> throw new IllegalArgumentException("no such aggregation: " + aggregation());
        };
    }

    private KTable<Windowed<String>, Object> suppressed(KTable<Windowed<String>, Object> results) {
        return operation.get("emit").asText().equals("suppress_until_window_closes")
                ? results.suppress(Suppressed.untilWindowCloses(BufferConfig.unbounded()))
                : results;
    }

    private KStream<String, Object> streamStreamJoin() {
        JsonNode window = operation.get("window");
        JoinWindows windows = JoinWindows.ofTimeDifferenceAndGrace(millis(window, "beforeMs"), millis(window, "graceMs"))
                .after(millis(window, "afterMs"));
        KStream<String, Object> left = stream("left");
        KStream<String, Object> right = stream("right");
        StreamJoined<String, Object, Object> joined = StreamJoined.with(KEY, VALUE, VALUE);
        String join = operation.get("join").asText();
        return switch (join) {
            case "inner" -> left.join(right, PAIR, windows, joined);
            case "left" -> left.leftJoin(right, PAIR, windows, joined);
            case "outer" -> left.outerJoin(right, PAIR, windows, joined);
            default -> throw new IllegalArgumentException("no such join: " + join);
        };
    }

    private void write(KStream<String, Object> stream) {
        stream.to(prefix + OUTPUT, Produced.with(KEY, VALUE));
    }

    /** As by the window serdes of Kafka, a result goes to the partition of its key. */
    private void writeWindowed(KStream<Windowed<String>, Object> stream) {
        Serde<Windowed<String>> key = new Json.WindowedSerde();
        stream.to(prefix + OUTPUT, Produced.with(key, VALUE).withStreamPartitioner((topic, windowed, value, count) -> {
            byte[] bytes = new StringSerializer().serialize(topic, windowed.key());
            return Optional.of(Set.of(Utils.toPositive(Utils.murmur2(bytes)) % count));
        }));
    }

    private boolean isInner() {
        return operation.get("join").asText().equals("inner");
    }

    private boolean isOnWindowClose() {
        return operation.get("emit").asText().equals("on_window_close");
    }

    private String aggregation() {
        return operation.get("aggregation").asText();
    }

    private Materialized<String, Object, KeyValueStore<Bytes, byte[]>> result() {
        return store("result", operation.path("materialized"));
    }

    private <S extends StateStore> Materialized<String, Object, S> retained(
            Materialized<String, Object, S> store) {
        JsonNode window = operation.get("window");
        return window.has("storeRetentionMs") ? store.withRetention(millis(window, "storeRetentionMs")) : store;
    }

    private static Materialized<String, Object, KeyValueStore<Bytes, byte[]>> store(String name, JsonNode spec) {
        Materialized<String, Object, KeyValueStore<Bytes, byte[]>> store = spec.path("versioned").asBoolean()
                ? Materialized.as(versioned(name, spec))
                : Materialized.as(name);
        return store.withKeySerde(KEY).withValueSerde(VALUE);
    }

    private static VersionedBytesStoreSupplier versioned(String name, JsonNode spec) {
        Duration retention = millis(spec, "historyRetentionMs");
        return spec.has("segmentIntervalMs")
                ? Stores.persistentVersionedKeyValueStore(name, retention, millis(spec, "segmentIntervalMs"))
                : Stores.persistentVersionedKeyValueStore(name, retention);
    }

    private static KTable<String, Object> counted(
            KGroupedTable<String, Object> grouped, Materialized<String, Object, KeyValueStore<Bytes, byte[]>> store) {
        return untyped(grouped.count(ofCounts(store)));
    }

    private static Predicate<String, Object> predicate(JsonNode spec) {
        String type = spec.get("type").asText();
        long bound = spec.path("value").asLong();
        return switch (type) {
            case "even" -> (key, value) -> number(value) % 2 == 0;
            case "gte" -> (key, value) -> number(value) >= bound;
            default -> throw new IllegalArgumentException("no such predicate: " + type);
        };
    }

    private static Object pair(Object left, Object right) {
        Map<String, Object> fields = new LinkedHashMap<>();
        fields.put("left", left);
        fields.put("right", right);
        return fields;
    }

    private static Object field(Object value, String name) {
        return value instanceof Map<?, ?> fields ? fields.get(name) : null;
    }

    private static long number(Object value) {
        return value == null ? 0 : ((Number) value).longValue();
    }

    private static Duration millis(JsonNode spec, String field) {
        return Duration.ofMillis(spec.get(field).asLong());
    }

    /** A count is a Long for the DSL, and a value like any other here. */
    @SuppressWarnings("unchecked")
    private static <S extends StateStore> Materialized<String, Long, S> ofCounts(Materialized<String, ?, S> store) {
        return (Materialized<String, Long, S>) store;
    }

    @SuppressWarnings("unchecked")
    private static <K> KTable<K, Object> untyped(KTable<K, ?> table) {
        return (KTable<K, Object>) table;
    }
}
