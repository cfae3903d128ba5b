"""Client options with Kafka's names: how a client connects to a cluster and authenticates."""

from __future__ import annotations

from headrace.options.table import Kind, Option, OptionTable, unused

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
STORE_TYPES = (
    "JKS and PKCS12 stores are not read; openssl pkcs12 -in store.p12 -nodes -out store.pem makes a PEM file of one"
)

CONNECTION_OPTIONS = (
    Option("bootstrap.servers", Kind.LIST, [], "brokers to connect to first, as host:port"),
    Option("request.timeout.ms", Kind.INT, 30_000, "time to wait for a response", at_least=1),
    Option("security.protocol", Kind.STRING, "PLAINTEXT", "protocol of connections to brokers", one_of=PROTOCOLS),
    Option("sasl.mechanism", Kind.STRING, "GSSAPI", "how the client logs in", one_of=(*MECHANISMS, "GSSAPI")),
    Option("sasl.jaas.config", Kind.PASSWORD, None, 'module.Class required username="…" password="…";'),
    Option("ssl.endpoint.identification.algorithm", Kind.STRING, "https", "empty: the broker's name is not checked"),
    Option(
        "ssl.enabled.protocols",
        Kind.LIST,
        ["TLSv1.2", "TLSv1.3"],
        "versions of TLS",
        one_of=("TLSv1.2", "TLSv1.3"),
    ),
    Option("ssl.cipher.suites", Kind.LIST, [], "cipher suites of TLS 1.2; empty: OpenSSL's choice"),
    Option("ssl.truststore.type", Kind.STRING, "PEM", "PEM", one_of=("PEM",)),
    Option(
        "ssl.truststore.location",
        Kind.STRING,
        None,
        "a PEM file with trusted certificates; default: those of the system",
    ),
    Option("ssl.truststore.certificates", Kind.PASSWORD, None, "the certificates themselves, instead of a file"),
    Option("ssl.truststore.password", Kind.PASSWORD, None, "for other stores than PEM", refused=STORE_TYPES),
    Option("ssl.keystore.type", Kind.STRING, "PEM", "PEM", one_of=("PEM",)),
    Option("ssl.keystore.location", Kind.STRING, None, "a PEM file with the client's key and certificate chain"),
    Option("ssl.keystore.key", Kind.PASSWORD, None, "the private key itself, instead of a file"),
    Option("ssl.keystore.certificate.chain", Kind.PASSWORD, None, "the certificate chain itself, instead of a file"),
    Option("ssl.keystore.password", Kind.PASSWORD, None, "for other stores than PEM", refused=STORE_TYPES),
    Option("ssl.key.password", Kind.PASSWORD, None, "the password of the private key"),
    *unused(
        "TLS is OpenSSL here",
        Option("ssl.protocol", Kind.STRING, "TLSv1.3", "only in a JVM"),
        Option("ssl.provider", Kind.STRING, None, "only in a JVM"),
        Option("ssl.keymanager.algorithm", Kind.STRING, "SunX509", "only in a JVM"),
        Option("ssl.trustmanager.algorithm", Kind.STRING, "PKIX", "only in a JVM"),
        Option("ssl.secure.random.implementation", Kind.STRING, None, "only in a JVM"),
    ),
)

# Options of the command line and other short-lived clients; producers and consumers have their own tables.
CLIENT_OPTIONS = OptionTable(
    *CONNECTION_OPTIONS,
    Option("client.id", Kind.STRING, "headrace-cli", "the name that brokers log"),
    *unused(
        "the command line sends each request once and waits for request.timeout.ms",
        Option("default.api.timeout.ms", Kind.INT, 60_000, "time limit of a call", at_least=0),
        Option("retries", Kind.INT, 2_147_483_647, "number of retries of a request", at_least=0),
        Option("retry.backoff.ms", Kind.LONG, 100, "pause before a retry", at_least=0),
    ),
)
