import com.fasterxml.jackson.databind.JsonNode;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.atomic.AtomicReference;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.ListOffsetsResult.ListOffsetsResultInfo;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;

/** A real application against a broker, for as long as it takes to process what its topics hold. */
final class Live {
    private static final Duration LIMIT = Duration.ofMinutes(3);
    private static final long PAUSE_MS = 20;

    private final String application;
    private final String prefix;
    private final Admin admin;

    private Live(JsonNode job, Admin admin) {
        application = job.get("application").asText();
        prefix = job.get("prefix").asText();
        this.admin = admin;
    }

    /**
     * Start the operation of a job. Each time that all is processed and written say `done`, and go on at the next line
     * of the input; stop at its end. What is in `config` of the job goes over our own settings.
     */
    static void run(Path path, Path state) throws IOException, InterruptedException, ExecutionException {
        JsonNode job = Json.MAPPER.readTree(path.toFile());
        Topology topology = Topologies.of(job.get("operation"), job.get("prefix").asText());
        AtomicReference<Throwable> failure = new AtomicReference<>();
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", job.get("bootstrap").asText()));
                KafkaStreams streams = new KafkaStreams(topology, properties(job, state))) {
            streams.setUncaughtExceptionHandler(error -> {
                failure.compareAndSet(null, error);
                return StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
            });
            Live live = new Live(job, admin);
            streams.start();
            BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
            do {
                live.await(failure);
                System.out.println("done");
            } while (input.readLine() != null);
        }
    }

    private void await(AtomicReference<Throwable> failure) throws InterruptedException, ExecutionException {
        long end = System.nanoTime() + LIMIT.toNanos();
        while (!isDone()) {
            if (failure.get() != null) {
                throw new IllegalStateException("the application failed", failure.get());
            }
            if (System.nanoTime() > end) {
                throw new IllegalStateException("not done after " + LIMIT + ": " + lags());
            }
            Thread.sleep(PAUSE_MS);
        }
    }

    private static Properties properties(JsonNode job, Path state) {
        Properties properties = Driver.properties(state);
        properties.remove(StreamsConfig.InternalConfig.EMIT_INTERVAL_MS_KSTREAMS_OUTER_JOIN_SPURIOUS_RESULTS_FIX);
        properties.remove(StreamsConfig.InternalConfig.EMIT_INTERVAL_MS_KSTREAMS_WINDOWED_AGGREGATION);
        properties.put(StreamsConfig.APPLICATION_ID_CONFIG, job.get("application").asText());
        properties.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, job.get("bootstrap").asText());
        properties.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, 1);
        properties.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, PAUSE_MS);
        properties.put(StreamsConfig.REPLICATION_FACTOR_CONFIG, 1);
        properties.put("auto.offset.reset", "earliest");
        job.path("config").fields().forEachRemaining(entry -> properties.put(entry.getKey(), entry.getValue().asText()));
        return properties;
    }

    /** Has it committed the end of everything that it reads? Results are flushed before offsets are committed. */
    private boolean isDone() throws InterruptedException, ExecutionException {
        Map<TopicPartition, Long> lags = lags();
        return !lags.isEmpty() && lags.values().stream().allMatch(lag -> lag == 0);
    }

    /** Offsets are read before the ends: what was committed at a moment is all that there was a moment later. */
    private Map<TopicPartition, Long> lags() throws InterruptedException, ExecutionException {
        Map<TopicPartition, OffsetAndMetadata> committed =
                admin.listConsumerGroupOffsets(application).partitionsToOffsetAndMetadata().get();
        Map<TopicPartition, ListOffsetsResultInfo> ends = admin.listOffsets(
                        sources().stream().collect(Collectors.toMap(source -> source, source -> OffsetSpec.latest())))
                .all()
                .get();
        Map<TopicPartition, Long> lags = new HashMap<>();
        ends.forEach((source, end) -> {
            OffsetAndMetadata offset = committed.get(source);
            lags.put(source, end.offset() - (offset == null ? 0 : offset.offset()));
        });
        return lags;
    }

    /** The partitions of the topics that it reads: those given to it, and those that it writes to itself. */
    private List<TopicPartition> sources() throws InterruptedException, ExecutionException {
        List<String> topics = admin.listTopics().names().get().stream()
                .filter(topic -> topic.startsWith(prefix) || topic.startsWith(application + "-"))
                .filter(topic -> !topic.equals(prefix + Topologies.OUTPUT) && !topic.endsWith("-changelog"))
                .toList();
        return admin.describeTopics(topics).allTopicNames().get().values().stream()
                .flatMap(Live::partitions)
                .toList();
    }

    private static Stream<TopicPartition> partitions(TopicDescription topic) {
        return topic.partitions().stream().map(partition -> new TopicPartition(topic.name(), partition.partition()));
    }
}
