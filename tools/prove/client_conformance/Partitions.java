import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.HexFormat;
import org.apache.kafka.clients.producer.internals.BuiltInPartitioner;

/** Keys in hexadecimal, one in a line of standard input; the partitions of each, for as many partitions as the arguments say. */
class Partitions {
    public static void main(String[] counts) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        StringBuilder out = new StringBuilder();
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            byte[] key = HexFormat.of().parseHex(line);
            for (String count : counts)
                out.append(BuiltInPartitioner.partitionForKey(key, Integer.parseInt(count))).append(' ');
            out.append('\n');
        }
        System.out.print(out);
    }
}
