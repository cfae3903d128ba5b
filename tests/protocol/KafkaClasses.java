// Reads lines "message version hex", decodes each with Kafka's own class and prints what that class encodes again.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.util.HexFormat;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.Message;
import org.apache.kafka.common.protocol.ObjectSerializationCache;

public class KafkaClasses {
    static final String[] PACKAGES = {
        "common.message", "common.metadata", "coordinator.group.generated", "coordinator.share.generated",
        "coordinator.transaction.generated", "raft.generated", "server.log.remote.metadata.storage.generated"
    };

    static Class<?> find(String name) throws ClassNotFoundException {
        for (String where : PACKAGES) {
            for (String suffix : new String[] {"Data", ""}) {
                try {
                    return Class.forName("org.apache.kafka." + where + "." + name + suffix);
                } catch (ClassNotFoundException elsewhere) {
                    continue;
                }
            }
        }
        throw new ClassNotFoundException(name);
    }

    static String again(String name, short version, byte[] encoded) throws Exception {
        ByteBufferAccessor in = new ByteBufferAccessor(ByteBuffer.wrap(encoded));
        Message message = (Message) find(name).getConstructor().newInstance();
        message.read(in, version);
        ObjectSerializationCache cache = new ObjectSerializationCache();
        byte[] out = new byte[message.size(cache, version)];
        message.write(new ByteBufferAccessor(ByteBuffer.wrap(out)), cache, version);
        return HexFormat.of().formatHex(out) + (in.remaining() > 0 ? " and " + in.remaining() + " bytes left" : "");
    }

    public static void main(String[] arguments) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        StringBuilder answers = new StringBuilder();
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] parts = line.split(" ", -1);
            try {
                answers.append(again(parts[0], Short.parseShort(parts[1]), HexFormat.of().parseHex(parts[2])));
            } catch (Exception failure) {
                answers.append(failure);
            }
            answers.append('\n');
        }
        System.out.print(answers);
    }
}
