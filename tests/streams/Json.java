import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.DeserializationFeature;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.util.LinkedHashMap;
import java.util.Map;
import org.apache.kafka.common.serialization.Deserializer;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.serialization.Serializer;
import org.apache.kafka.streams.kstream.Windowed;

/** Values as JSON: null, longs, strings, and maps of these; the key of a windowed result as `{"key", "start", "end"}`. */
final class Json {
    static final ObjectMapper MAPPER = new ObjectMapper().enable(DeserializationFeature.USE_LONG_FOR_INTS);
    static final Serde<Object> SERDE = Serdes.serdeFrom(new Writer(), new Reader());

    private Json() {}

    /** As what Kafka Streams makes an instance of, by its configuration. */
    public static final class DefaultSerde extends Serdes.WrapperSerde<Object> {
        public DefaultSerde() {
            super(new Writer(), new Reader());
        }
    }

    static Object value(JsonNode node) {
        return MAPPER.convertValue(node, Object.class);
    }

    static byte[] write(Object value) {
        try {
            return value == null ? null : MAPPER.writeValueAsBytes(value);
        } catch (JsonProcessingException error) {
            throw new IllegalArgumentException(error);
        }
    }

    /** For keys that are written only. */
    static final class WindowedSerde implements Serde<Windowed<String>> {
        @Override
        public Serializer<Windowed<String>> serializer() {
            return (topic, key) -> {
                Map<String, Object> fields = new LinkedHashMap<>();
                fields.put("key", key.key());
                fields.put("start", key.window().start());
                fields.put("end", key.window().end());
                return write(fields);
            };
        }

        @Override
        public Deserializer<Windowed<String>> deserializer() {
            return null;
        }
    }

    private static final class Writer implements Serializer<Object> {
        @Override
        public byte[] serialize(String topic, Object value) {
            return write(value);
        }
    }

    private static final class Reader implements Deserializer<Object> {
        @Override
        public Object deserialize(String topic, byte[] bytes) {
            try {
                return bytes == null ? null : MAPPER.readValue(bytes, Object.class);
            } catch (IOException error) {
                throw new IllegalArgumentException(error);
            }
        }
    }
}
