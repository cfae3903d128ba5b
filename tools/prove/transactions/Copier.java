import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Random;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** Does with Java's client what copier.py does with Python's. Arguments: ID BOOTSTRAP SOURCE TARGET GROUP SEED ABORT_PROBABILITY BATCH_MAX. */
public class Copier {
    private static final Duration POLL = Duration.ofMillis(200);
    private static volatile boolean stopped = false;

    public static void main(String[] arguments) {
        Thread copying = Thread.currentThread();
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            stopped = true;
            try {
                copying.join();
            } catch (InterruptedException ignored) {
                Thread.currentThread().interrupt();
            }
        }));
        try {
            copy(arguments);
        } catch (Exception error) {
            System.err.println(error);
            Runtime.getRuntime().halt(1); // immediately, without the clean-up of the client
        }
    }

    private static void copy(String[] arguments) {
        String source = arguments[2];
        String target = arguments[3];
        Random random = new Random(Long.parseLong(arguments[5]));
        double abortProbability = Double.parseDouble(arguments[6]);
        try (KafkaProducer<String, String> producer = producer(arguments[0], arguments[1])) {
            producer.initTransactions();
            try (KafkaConsumer<String, String> consumer = consumer(arguments[1], arguments[4], arguments[7])) {
                consumer.subscribe(List.of(source));
                while (!stopped) {
                    ConsumerRecords<String, String> records = consumer.poll(POLL);
                    if (!records.isEmpty()) {
                        transaction(producer, consumer, records, target, random, abortProbability);
                    }
                }
            }
        }
    }

    private static void transaction(
            KafkaProducer<String, String> producer,
            KafkaConsumer<String, String> consumer,
            ConsumerRecords<String, String> records,
            String target,
            Random random,
            double abortProbability) {
        Map<TopicPartition, Long> first = new HashMap<>();
        Map<TopicPartition, OffsetAndMetadata> after = new HashMap<>();
        producer.beginTransaction();
        for (ConsumerRecord<String, String> record : records) {
            TopicPartition place = new TopicPartition(record.topic(), record.partition());
            first.putIfAbsent(place, record.offset());
            after.put(place, new OffsetAndMetadata(record.offset() + 1));
            producer.send(new ProducerRecord<>(target, record.partition(), null, "copy of " + record.value()));
        }
        boolean aborts = random.nextDouble() < abortProbability;
        if (aborts && random.nextBoolean()) {
            producer.flush(); // puts aborted records into the log rather than only into the client
        }
        if (!aborts || random.nextBoolean()) {
            producer.sendOffsetsToTransaction(after, consumer.groupMetadata());
        }
        if (aborts) {
            producer.abortTransaction();
            first.forEach(consumer::seek);
        } else {
            producer.commitTransaction();
        }
        String name = aborts ? "aborted" : "committed";
        System.out.println("{\"name\": \"" + name + "\", \"records\": " + records.count() + "}");
        System.out.flush();
    }

    private static KafkaProducer<String, String> producer(String identity, String bootstrap) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("transactional.id", identity);
        settings.put("transaction.timeout.ms", "10000");
        settings.put("key.serializer", StringSerializer.class.getName());
        settings.put("value.serializer", StringSerializer.class.getName());
        return new KafkaProducer<>(settings);
    }

    private static KafkaConsumer<String, String> consumer(String bootstrap, String group, String batch) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("group.id", group);
        settings.put("isolation.level", "read_committed");
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", "false");
        settings.put("session.timeout.ms", "2000");
        settings.put("heartbeat.interval.ms", "300");
        settings.put("max.poll.records", batch);
        settings.put("key.deserializer", StringDeserializer.class.getName());
        settings.put("value.deserializer", StringDeserializer.class.getName());
        return new KafkaConsumer<>(settings);
    }
}
