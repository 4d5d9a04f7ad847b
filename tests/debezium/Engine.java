import io.debezium.embedded.Connect;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.RecordChangeEvent;
import io.debezium.engine.format.ChangeEventFormat;
import java.io.IOException;
import java.io.Reader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.header.internals.RecordHeaders;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.connect.header.Header;
import org.apache.kafka.connect.json.JsonConverter;
import org.apache.kafka.connect.json.JsonConverterConfig;
import org.apache.kafka.connect.source.SourceRecord;

/**
 * Debezium itself, without Kafka Connect: `Engine PROPERTIES SERVERS`.
 *
 * Each change event goes to two topics, converted as Connect's JsonConverter does: `plain.<topic>` without its schema,
 * `schema.<topic>` with it. Ends in order when its standard input does; says "started" when it runs.
 */
public final class Engine {
    private Engine() {}

    public static void main(String[] arguments) throws Exception {
        Properties properties = new Properties();
        try (Reader reader = Files.newBufferedReader(Path.of(arguments[0]))) {
            properties.load(reader);
        }
        Map<String, Object> client =
                Map.of("bootstrap.servers", arguments[1], "acks", "all", "enable.idempotence", "true");
        ByteArraySerializer bytes = new ByteArraySerializer();
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(client, bytes, bytes)) {
            List<Output> outputs = List.of(new Output("plain.", false), new Output("schema.", true));
            DebeziumEngine<RecordChangeEvent<SourceRecord>> engine = DebeziumEngine.create(
                            ChangeEventFormat.of(Connect.class))
                    .using(properties)
                    .using((success, message, error) -> {
                        if (!success) {
                            System.err.println("failed: " + message);
                            error.printStackTrace();
                        }
                    })
                    .notifying((events, committer) -> {
                        List<Future<RecordMetadata>> sent = new ArrayList<>();
                        for (RecordChangeEvent<SourceRecord> event : events) {
                            for (Output output : outputs) {
                                sent.add(producer.send(output.record(event.record())));
                            }
                        }
                        for (Future<RecordMetadata> one : sent) {
                            try {
                                one.get();
                            } catch (java.util.concurrent.ExecutionException error) {
                                throw new IllegalStateException(error);
                            }
                        }
                        for (RecordChangeEvent<SourceRecord> event : events) {
                            committer.markProcessed(event);
                        }
                        committer.markBatchFinished();
                    })
                    .build();
            var runner = Executors.newSingleThreadExecutor();
            runner.execute(engine);
            System.out.println("started");
            while (System.in.read() >= 0) {}
            close(engine);
            runner.shutdown();
        }
    }

    private static void close(DebeziumEngine<?> engine) throws IOException {
        engine.close();
    }

    private static final class Output {
        private final String prefix;
        private final JsonConverter key = new JsonConverter();
        private final JsonConverter value = new JsonConverter();

        Output(String prefix, boolean schemas) {
            this.prefix = prefix;
            Map<String, Object> how = Map.of(JsonConverterConfig.SCHEMAS_ENABLE_CONFIG, schemas);
            key.configure(how, true);
            value.configure(how, false);
        }

        ProducerRecord<byte[], byte[]> record(SourceRecord record) {
            RecordHeaders headers = new RecordHeaders();
            for (Header header : record.headers()) {
                headers.add(header.key(), value.fromConnectHeader(record.topic(), header.key(), header.schema(), header.value()));
            }
            return new ProducerRecord<>(
                    prefix + record.topic(),
                    record.kafkaPartition(),
                    record.timestamp(),
                    record.key() == null ? null : key.fromConnectData(record.topic(), record.keySchema(), record.key()),
                    record.value() == null
                            ? null
                            : value.fromConnectData(record.topic(), record.valueSchema(), record.value()),
                    headers);
        }
    }
}
