import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import java.io.BufferedWriter;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Instant;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.SortedMap;
import java.util.TreeMap;
import java.util.TreeSet;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.Headers;
import org.apache.kafka.common.header.internals.RecordHeaders;
import org.apache.kafka.common.serialization.Deserializer;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.TestInputTopic;
import org.apache.kafka.streams.TestOutputTopic;
import org.apache.kafka.streams.TopologyTestDriver;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.processor.StateStore;
import org.apache.kafka.streams.query.MultiVersionedKeyQuery;
import org.apache.kafka.streams.query.PositionBound;
import org.apache.kafka.streams.query.Query;
import org.apache.kafka.streams.query.QueryConfig;
import org.apache.kafka.streams.query.VersionedKeyQuery;
import org.apache.kafka.streams.state.KeyValueIterator;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.ValueAndTimestamp;
import org.apache.kafka.streams.state.VersionedKeyValueStore;
import org.apache.kafka.streams.state.VersionedRecord;
import org.apache.kafka.streams.state.VersionedRecordIterator;
import org.apache.kafka.streams.test.TestRecord;

/** What the TopologyTestDriver makes of vectors: each gets its `expected`, in the vectors' format. */
final class Driver implements AutoCloseable {
    private final JsonNode operation;
    private final JsonNode records;
    private final TopologyTestDriver driver;
    private final boolean asksForHeaders;

    private Driver(Topology topology, JsonNode vector, Path state) {
        operation = vector.get("operation");
        records = vector.get("records");
        asksForHeaders = records.path(0).has("headers");
        driver = new TopologyTestDriver(topology, properties(state), Instant.EPOCH);
    }

    /** Read a JSON list of vectors, and write it with what each gives. */
    static void run(Path vectors, Path results, Path state) throws IOException {
        JsonNode all = Json.MAPPER.readTree(vectors.toFile());
        try (BufferedWriter out = Files.newBufferedWriter(results)) {
            out.write("[");
            String separator = "\n";
            for (JsonNode vector : all) {
                Map<String, Object> fields = new LinkedHashMap<>();
                vector.fields().forEachRemaining(field -> fields.put(field.getKey(), field.getValue()));
                fields.put("expected", expected(vector, state));
                out.write(separator + Json.MAPPER.writeValueAsString(fields));
                separator = ",\n";
            }
            out.write("\n]\n");
        }
    }

    private static Map<String, Object> expected(JsonNode vector, Path state) {
        Topology topology;
        try {
            JsonNode operation = vector.get("operation");
            topology = Views.areIn(operation) ? Views.of(operation, "") : Topologies.of(operation, "");
        } catch (RuntimeException error) {
            return Map.of("error", error("build", error));
        }
        Driver running;
        try {
            running = new Driver(topology, vector, state);
        } catch (RuntimeException error) {
            return Map.of("error", error("init", error));
        }
        Map<String, Object> expected = new LinkedHashMap<>();
        boolean failed = false;
        try {
            if (vector.get("operation").get("type").asText().equals("store")) {
                expected.put("results", running.steps());
            } else if (Views.areIn(running.operation)) {
                running.processViews(expected);
                return expected;
            } else {
                failed = running.process(expected);
            }
            if (!failed) {
                running.read(expected);
            }
            return expected;
        } finally {
            try {
                running.close();
            } catch (RuntimeException error) {
                if (!failed) {
                    throw error;
                }
            }
        }
    }

    @Override
    public void close() {
        driver.close();
    }

    /** Feed all records; true when one of them failed. */
    private boolean process(Map<String, Object> expected) {
        List<Map<String, Object>> emitted = new ArrayList<>();
        expected.put("emitted", emitted);
        Map<String, TestInputTopic<String, Object>> inputs = new LinkedHashMap<>();
        Deserializer<Object> key = Topologies.isWindowed(operation)
                ? Json.SERDE.deserializer()
                : (topic, bytes) -> new StringDeserializer().deserialize(topic, bytes);
        TestOutputTopic<Object, Object> output =
                driver.createOutputTopic(Topologies.OUTPUT, key, Json.SERDE.deserializer());
        for (int cause = 0; cause < records.size(); cause++) {
            JsonNode record = records.get(cause);
            TestInputTopic<String, Object> input = inputs.computeIfAbsent(record.get("topic").asText(), topic ->
                    driver.createInputTopic(topic, new StringSerializer(), Json.SERDE.serializer()));
            Exception failure = null;
            try {
                input.pipeInput(new TestRecord<>(
                        record.get("key").textValue(),
                        Json.value(record.get("value")),
                        headers(record),
                        Instant.ofEpochMilli(record.get("timestamp").asLong())));
            } catch (RuntimeException error) {
                failure = error;
            }
            while (!output.isEmpty()) {
                TestRecord<Object, Object> result = output.readRecord();
                Map<String, Object> row = new LinkedHashMap<>();
                row.put("key", result.key());
                row.put("value", result.value());
                row.put("timestamp", result.timestamp());
                row.put("cause", cause);
                if (asksForHeaders) {
                    row.put("headers", headers(result));
                }
                emitted.add(row);
            }
            if (failure != null) {
                Map<String, Object> error = error("process", failure);
                error.put("record", cause);
                expected.put("error", error);
                return true;
            }
        }
        return false;
    }

    /** Feed all records; what each view emits. */
    private void processViews(Map<String, Object> expected) {
        Map<String, TestInputTopic<String, Object>> inputs = new LinkedHashMap<>();
        Map<String, TestOutputTopic<String, Object>> outputs = new LinkedHashMap<>();
        Map<String, List<Object>> emitted = new LinkedHashMap<>();
        for (JsonNode view : operation.get("views")) {
            String name = view.get("name").asText();
            emitted.put(name, new ArrayList<>());
            outputs.put(name, driver.createOutputTopic(
                    Views.OUTPUT + name, new StringDeserializer(), Json.SERDE.deserializer()));
        }
        for (int cause = 0; cause < records.size(); cause++) {
            JsonNode record = records.get(cause);
            inputs.computeIfAbsent(record.get("topic").asText(), topic ->
                            driver.createInputTopic(topic, new StringSerializer(), Json.SERDE.serializer()))
                    .pipeInput(new TestRecord<>(
                            record.get("key").textValue(),
                            Json.value(record.get("value")),
                            headers(record),
                            Instant.ofEpochMilli(record.get("timestamp").asLong())));
            for (Map.Entry<String, TestOutputTopic<String, Object>> output : outputs.entrySet()) {
                while (!output.getValue().isEmpty()) {
                    TestRecord<String, Object> result = output.getValue().readRecord();
                    List<Object> row = new ArrayList<>();
                    row.add(result.key());
                    row.add(result.value());
                    row.add(result.timestamp());
                    row.add(cause);
                    emitted.get(output.getKey()).add(row);
                }
            }
        }
        expected.put("emitted", emitted);
    }

    /** The headers of a record: pairs of texts, if it has any. */
    private static Headers headers(JsonNode record) {
        Headers headers = new RecordHeaders();
        for (JsonNode header : record.path("headers")) {
            headers.add(header.get(0).asText(), header.get(1).asText().getBytes(StandardCharsets.UTF_8));
        }
        return headers;
    }

    private static List<Object> headers(TestRecord<Object, Object> result) {
        List<Object> headers = new ArrayList<>();
        for (Header header : result.headers()) {
            headers.add(List.of(header.key(), new String(header.value(), StandardCharsets.UTF_8)));
        }
        return headers;
    }

    private List<Object> steps() {
        VersionedKeyValueStore<String, Object> store = driver.getVersionedKeyValueStore("store");
        List<Object> results = new ArrayList<>();
        for (JsonNode step : records) {
            results.add(result(store, step));
        }
        return results;
    }

    private static Object result(VersionedKeyValueStore<String, Object> store, JsonNode step) {
        String key = step.get("key").asText();
        String op = step.get("op").asText();
        switch (op) {
            case "put":
                return store.put(key, Json.value(step.get("value")), step.get("timestamp").asLong());
            case "get":
                return row(step.has("asOf") ? store.get(key, step.get("asOf").asLong()) : store.get(key));
            case "delete":
                return row(store.delete(key, step.get("timestamp").asLong()));
            case "queryAsOf": {
                VersionedKeyQuery<String, Object> query = VersionedKeyQuery.withKey(key);
                VersionedRecord<Object> found =
                        answer(store, step.has("asOf") ? query.asOf(moment(step, "asOf")) : query);
                return found == null ? null : version(found);
            }
            case "query":
                return versions(store, step, key);
            default:
                throw new IllegalArgumentException("no such step: " + op);
        }
    }

    private static List<Object> versions(VersionedKeyValueStore<String, Object> store, JsonNode step, String key) {
        MultiVersionedKeyQuery<String, Object> query = MultiVersionedKeyQuery.withKey(key);
        query = step.has("from") ? query.fromTime(moment(step, "from")) : query;
        query = step.has("to") ? query.toTime(moment(step, "to")) : query;
        String order = step.path("order").asText();
        query = order.startsWith("asc") ? query.withAscendingTimestamps() : query;
        query = order.startsWith("desc") ? query.withDescendingTimestamps() : query;
        List<Object> found = new ArrayList<>();
        try (VersionedRecordIterator<Object> iterator = answer(store, query)) {
            iterator.forEachRemaining(record -> found.add(version(record)));
        }
        return found;
    }

    private static <R> R answer(StateStore store, Query<R> query) {
        return store.query(query, PositionBound.unbounded(), new QueryConfig(false)).getResult();
    }

    private static Instant moment(JsonNode step, String field) {
        return Instant.ofEpochMilli(step.get(field).asLong());
    }

    private static Map<String, Object> row(VersionedRecord<Object> record) {
        return record == null ? null : row(record.value(), record.timestamp());
    }

    private static Map<String, Object> row(Object value, long timestamp) {
        Map<String, Object> row = new LinkedHashMap<>();
        row.put("value", value);
        row.put("timestamp", timestamp);
        return row;
    }

    private static Map<String, Object> version(VersionedRecord<Object> record) {
        return version(record, record.validTo().orElse(null));
    }

    private static Map<String, Object> version(VersionedRecord<Object> record, Long validTo) {
        Map<String, Object> version = new LinkedHashMap<>();
        version.put("value", record.value());
        version.put("validFrom", record.timestamp());
        version.put("validTo", validTo);
        return version;
    }

    /** Read every store that has a name of its own. */
    private void read(Map<String, Object> expected) {
        Map<String, Object> history = new TreeMap<>();
        Map<String, Object> state = new TreeMap<>();
        for (Map.Entry<String, StateStore> store : driver.getAllStateStores().entrySet()) {
            String name = store.getKey();
            if (!name.matches("(table|left|right)(-\\d+)?|result|store")) {
                continue;
            }
            if (store.getValue() instanceof VersionedKeyValueStore) {
                history.put(name, history(driver.getVersionedKeyValueStore(name), keys(name, expected)));
            } else {
                state.put(name, state(driver.getTimestampedKeyValueStore(name)));
            }
        }
        if (!history.isEmpty()) {
            expected.put("history", history);
        }
        if (!state.isEmpty()) {
            expected.put("state", state);
        }
    }

    private TreeSet<String> keys(String store, Map<String, Object> expected) {
        TreeSet<String> keys = new TreeSet<>();
        if (store.equals("result")) {
            for (Object row : (List<?>) expected.get("emitted")) {
                keys.add((String) ((Map<?, ?>) row).get("key"));
            }
            return keys;
        }
        String topic = store.replaceFirst("-\\d+$", "");
        for (JsonNode record : records) {
            boolean isWritten = record.has("topic") ? record.get("topic").asText().equals(topic) : record.has("timestamp");
            if (isWritten && !record.get("key").isNull()) {
                keys.add(record.get("key").asText());
            }
        }
        return keys;
    }

    /** What look-ups at all times find: versions begin and end at timestamps of records, so that these are enough. */
    private Map<String, Object> history(VersionedKeyValueStore<String, Object> store, TreeSet<String> keys) {
        TreeSet<Long> times = new TreeSet<>();
        for (JsonNode record : records) {
            if (record.has("timestamp")) {
                long time = record.get("timestamp").asLong();
                times.add(time);
                times.add(Math.max(time - 1, 0));
            }
        }
        Map<String, Object> history = new TreeMap<>();
        for (String key : keys) {
            SortedMap<Long, VersionedRecord<Object>> found = new TreeMap<>();
            Map<Long, Long> seenLast = new LinkedHashMap<>();
            for (long time : times) {
                VersionedRecord<Object> record = store.get(key, time);
                if (record != null) {
                    found.put(record.timestamp(), record);
                    seenLast.put(record.timestamp(), time);
                }
            }
            List<Object> versions = new ArrayList<>();
            for (VersionedRecord<Object> record : found.values()) {
                long last = seenLast.get(record.timestamp());
                versions.add(version(record, last == times.last() ? null : (Long) (last + 1)));
            }
            history.put(key, versions);
        }
        return history;
    }

    private static Map<String, Object> state(KeyValueStore<String, ValueAndTimestamp<Object>> store) {
        Map<String, Object> state = new TreeMap<>();
        try (KeyValueIterator<String, ValueAndTimestamp<Object>> rows = store.all()) {
            rows.forEachRemaining(row -> state.put(row.key, row(row.value.value(), row.value.timestamp())));
        }
        return state;
    }

    private static Map<String, Object> error(String phase, Exception thrown) {
        Throwable root = thrown;
        while (root.getCause() != null) {
            root = root.getCause();
        }
        Map<String, Object> error = new LinkedHashMap<>();
        error.put("phase", phase);
        error.put("class", root.getClass().getName());
        error.put("message", root.getMessage());
        if (root.getClass() != thrown.getClass()) {
            error.put("thrownAs", thrown.getClass().getName());
        }
        return error;
    }

    static Properties properties(Path state) {
        Properties properties = new Properties();
        properties.put(StreamsConfig.APPLICATION_ID_CONFIG, "vector");
        properties.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, "none:1");
        properties.put(StreamsConfig.STATE_DIR_CONFIG, state.toString());
        properties.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, 0);
        properties.put(StreamsConfig.DEFAULT_KEY_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
        properties.put(StreamsConfig.DEFAULT_VALUE_SERDE_CLASS_CONFIG, Json.DefaultSerde.class);
        properties.put(StreamsConfig.InternalConfig.EMIT_INTERVAL_MS_KSTREAMS_OUTER_JOIN_SPURIOUS_RESULTS_FIX, 0L);
        properties.put(StreamsConfig.InternalConfig.EMIT_INTERVAL_MS_KSTREAMS_WINDOWED_AGGREGATION, 0L);
        return properties;
    }
}
