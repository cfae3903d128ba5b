import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringSerializer;

/** Does with Java's client what racer.py does with confluent-kafka. Arguments: BOOTSTRAP TOPIC PRODUCERS ROUNDS. */
public class Racer {
    public static void main(String[] arguments) throws Exception {
        int producers = Integer.parseInt(arguments[2]);
        int rounds = Integer.parseInt(arguments[3]);
        ExecutorService pool = Executors.newFixedThreadPool(producers);
        List<Future<Void>> running = new ArrayList<>();
        for (int number = 0; number < producers; number++) {
            String name = "java-" + number;
            Callable<Void> loop = () -> {
                loop(name, arguments[0], arguments[1], rounds);
                return null;
            };
            running.add(pool.submit(loop));
        }
        int failed = 0;
        for (int number = 0; number < producers; number++) {
            try {
                running.get(number).get();
            } catch (ExecutionException error) {
                failed++;
                System.out.println("java-" + number + ": " + error.getCause());
            }
        }
        System.exit(failed == 0 ? 0 : 1);
    }

    private static void loop(String name, String bootstrap, String topic, int rounds) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("transactional.id", name);
        settings.put("key.serializer", StringSerializer.class.getName());
        settings.put("value.serializer", StringSerializer.class.getName());
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(settings)) {
            producer.initTransactions();
            for (int round = 0; round < rounds; round++) {
                producer.beginTransaction();
                for (int partition : producer.partitionsFor(topic).stream().mapToInt(one -> one.partition()).toArray()) {
                    producer.send(new ProducerRecord<>(topic, partition, null, name + " keeps " + round));
                }
                producer.commitTransaction();
                producer.beginTransaction();
                producer.send(new ProducerRecord<>(topic, name + " drops " + round));
                if (round % 4 == 3) {
                    producer.flush(); // the other rounds abort what may never have left the client
                }
                producer.abortTransaction();
            }
        }
    }
}
