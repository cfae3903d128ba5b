import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Scanner;
import java.util.Set;
import java.util.TreeMap;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Assignment;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.GroupSubscription;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Subscription;
import org.apache.kafka.clients.consumer.CooperativeStickyAssignor;
import org.apache.kafka.clients.consumer.RangeAssignor;
import org.apache.kafka.clients.consumer.RoundRobinAssignor;
import org.apache.kafka.clients.consumer.StickyAssignor;
import org.apache.kafka.clients.consumer.internals.ConsumerProtocol;
import org.apache.kafka.common.Cluster;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.PartitionInfo;
import org.apache.kafka.common.TopicPartition;

/** Kafka's own assignors, for whoever wants to compare: groups on standard input, what they get on standard output. */
public class Assign {
    private static final Map<String, Node> RACKS = new TreeMap<>();
    private static String assignor;
    private static List<PartitionInfo> partitions;
    private static Map<String, Subscription> members;
    private static Map<String, ByteBuffer> sent;

    public static void main(String[] arguments) {
        for (int number = 0; number < 4; number++) {
            RACKS.put("r" + number, new Node(number, "host", 9092, "r" + number));
        }
        Scanner lines = new Scanner(System.in);
        while (lines.hasNextLine()) {
            String[] words = lines.nextLine().split(" ", -1);
            switch (words[0]) {
                case "group" -> begin(words[1]);
                case "partition" -> partition(words[1], Integer.parseInt(words[2]), words[3]);
                case "member" -> member(words);
                case "end" -> end();
                default -> throw new IllegalArgumentException(words[0]);
            }
        }
    }

    private static void begin(String name) {
        assignor = name;
        partitions = new ArrayList<>();
        members = new HashMap<>();
        sent = new TreeMap<>();
    }

    private static void partition(String topic, int index, String racks) {
        List<Node> replicas = new ArrayList<>();
        for (String rack : some(racks)) {
            replicas.add(RACKS.get(rack));
        }
        Node[] nodes = replicas.toArray(new Node[0]);
        partitions.add(new PartitionInfo(topic, index, nodes.length > 0 ? nodes[0] : null, nodes, nodes));
    }

    /** member ID INSTANCE RACK TOPICS OWNED GENERATION, lists with commas, - for nothing. */
    private static void member(String[] words) {
        List<String> topics = some(words[4]);
        List<TopicPartition> owned = new ArrayList<>();
        for (String place : some(words[5])) {
            String[] parts = place.split(":");
            owned.add(new TopicPartition(parts[0], Integer.parseInt(parts[1])));
        }
        int generation = Integer.parseInt(words[6]);
        ConsumerPartitionAssignor own = assignor();
        if (!owned.isEmpty()) {
            own.onAssignment(new Assignment(owned), new ConsumerGroupMetadata("g", generation, words[1], Optional.empty()));
        }
        ByteBuffer userData = own.subscriptionUserData(new HashSet<>(topics));
        boolean keeps = assignor.equals("cooperative-sticky");
        Optional<String> rack = words[3].equals("-") ? Optional.empty() : Optional.of(words[3]);
        Subscription told = new Subscription(topics, userData, keeps ? owned : List.of(), generation, rack);
        sent.put(words[1], ConsumerProtocol.serializeSubscription(told));
        if (userData != null) {
            userData.rewind();
        }
        if (!words[2].equals("-")) {
            told.setGroupInstanceId(Optional.of(words[2]));
        }
        members.put(words[1], told);
    }

    private static void end() {
        Set<Node> nodes = new HashSet<>(RACKS.values());
        Cluster cluster = new Cluster("c", nodes, partitions, Set.of(), Set.of());
        Map<String, Assignment> assigned = assignor().assign(cluster, new GroupSubscription(members)).groupAssignment();
        for (String member : new TreeMap<>(assigned).keySet()) {
            List<String> places = new ArrayList<>();
            assigned.get(member).partitions().forEach(one -> places.add(one.topic() + ":" + one.partition()));
            ByteBuffer given = ConsumerProtocol.serializeAssignment(assigned.get(member));
            String list = places.isEmpty() ? "-" : String.join(",", places);
            System.out.println(member + " " + list + " " + hex(sent.get(member)) + " " + hex(given));
        }
        System.out.println("end");
    }

    private static ConsumerPartitionAssignor assignor() {
        return switch (assignor) {
            case "range" -> new RangeAssignor();
            case "roundrobin" -> new RoundRobinAssignor();
            case "sticky" -> new StickyAssignor();
            case "cooperative-sticky" -> new CooperativeStickyAssignor();
            default -> throw new IllegalArgumentException(assignor);
        };
    }

    private static List<String> some(String text) {
        return text.equals("-") ? List.of() : List.of(text.split(","));
    }

    private static String hex(ByteBuffer data) {
        StringBuilder text = new StringBuilder();
        for (ByteBuffer rest = data.duplicate(); rest.hasRemaining();) {
            text.append(String.format("%02x", rest.get()));
        }
        return text.toString();
    }
}
