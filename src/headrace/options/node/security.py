"""Options of authentication and authorization: authorizer, TLS, SASL. docs/security.md explains them."""

from __future__ import annotations

from headrace.options.node.reasons import NO_TOKENS, OPENSSL, PLUGINS
from headrace.options.table import Kind, Option, OptionTable, unused

SECURITY_OPTIONS = OptionTable(
    Option(
        "authorizer.class.name",
        Kind.STRING,
        "",
        "empty: all operations are allowed; or org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    ),
    Option("super.users", Kind.STRING, "", "users without restrictions, as User:a;User:b"),
    Option(
        "allow.everyone.if.no.acl.found",
        Kind.BOOLEAN,
        False,
        "whether everyone may access a resource without ACLs",
    ),
    Option(
        "principal.builder.class",
        Kind.CLASS,
        "org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder",
        "how principals are built; only Kafka's default",
    ),
    Option("connections.max.reauth.ms", Kind.LONG, 0, "how long a SASL login is valid; 0: as long as the connection"),
    Option("sasl.enabled.mechanisms", Kind.LIST, ["GSSAPI"], "PLAIN, SCRAM-SHA-256, SCRAM-SHA-512"),
    Option("sasl.server.max.receive.size", Kind.INT, 524_288, "the largest request before the login", at_least=1),
    Option(
        "ssl.client.auth",
        Kind.STRING,
        "none",
        "whether a client must present a certificate",
        one_of=("none", "requested", "required"),
    ),
    Option(
        "ssl.enabled.protocols", Kind.LIST, ["TLSv1.2", "TLSv1.3"], "versions of TLS", one_of=("TLSv1.2", "TLSv1.3")
    ),
    Option("ssl.cipher.suites", Kind.LIST, [], "cipher suites, by their standard names; empty: OpenSSL's default"),
    Option("ssl.keystore.type", Kind.STRING, "JKS", "only PEM can be read"),
    Option("ssl.keystore.location", Kind.STRING, None, "a PEM file with the private key and the certificate chain"),
    Option("ssl.keystore.key", Kind.PASSWORD, None, "the private key itself, instead of a file"),
    Option("ssl.keystore.certificate.chain", Kind.PASSWORD, None, "the certificate chain itself, instead of a file"),
    Option("ssl.keystore.password", Kind.PASSWORD, None, "for stores that are not PEM"),
    Option("ssl.key.password", Kind.PASSWORD, None, "the password of the private key"),
    Option("ssl.truststore.type", Kind.STRING, "JKS", "only PEM can be read"),
    Option("ssl.truststore.location", Kind.STRING, None, "a PEM file with the trusted certificates"),
    Option(
        "ssl.truststore.certificates",
        Kind.PASSWORD,
        None,
        "the trusted certificates themselves, instead of a file",
    ),
    Option("ssl.truststore.password", Kind.PASSWORD, None, "for stores that are not PEM"),
    Option(
        "ssl.principal.mapping.rules",
        Kind.STRING,
        "DEFAULT",
        "how the name in a certificate becomes the name of a user",
    ),
    *unused(
        "use listener.name.<listener>.<mechanism>.sasl.jaas.config, as in Kafka",
        Option(
            "sasl.jaas.config", Kind.PASSWORD, None, "the login module and its users, of one listener and mechanism"
        ),
    ),
    Option(
        "sasl.mechanism.inter.broker.protocol",
        Kind.STRING,
        "GSSAPI",
        "the SASL mechanism for connections to other brokers",
    ),
    Option(
        "ssl.endpoint.identification.algorithm",
        Kind.STRING,
        "https",
        "whether the name in another node's certificate is checked; empty: no",
    ),
    *unused(
        OPENSSL,
        Option("ssl.protocol", Kind.STRING, "TLSv1.3", "the TLS context of a JVM"),
        Option("ssl.provider", Kind.STRING, None, "the TLS provider of a JVM"),
        Option("ssl.keymanager.algorithm", Kind.STRING, "SunX509", "the key manager of a JVM"),
        Option("ssl.trustmanager.algorithm", Kind.STRING, "PKIX", "the trust manager of a JVM"),
        Option("ssl.secure.random.implementation", Kind.STRING, None, "the random numbers of a JVM"),
    ),
    *unused(
        "a new certificate may have any names",
        Option(
            "ssl.allow.dn.changes",
            Kind.BOOLEAN,
            False,
            "whether a new certificate may have another name",
            anyway=(True,),
        ),
        Option(
            "ssl.allow.san.changes",
            Kind.BOOLEAN,
            False,
            "whether a new certificate may have other alternative names",
            anyway=(True,),
        ),
    ),
    Option(
        "sasl.server.callback.handler.class",
        Kind.CLASS,
        None,
        "a class that checks passwords",
        refused=f"{PLUGINS}; PLAIN users are defined in listener.name.<listener>.plain.sasl.jaas.config",
    ),
    Option(
        "ssl.engine.factory.class",
        Kind.CLASS,
        None,
        "a class that creates TLS engines",
        refused=f"{PLUGINS}; use PEM files",
    ),
    Option("delegation.token.secret.key", Kind.PASSWORD, None, "the secret of delegation tokens", refused=NO_TOKENS),
    *unused(
        NO_TOKENS,
        Option(
            "delegation.token.max.lifetime.ms", Kind.LONG, 604_800_000, "how long a token can be renewed", at_least=1
        ),
        Option("delegation.token.expiry.time.ms", Kind.LONG, 86_400_000, "how long a token is valid", at_least=1),
        Option(
            "delegation.token.expiry.check.interval.ms",
            Kind.LONG,
            3_600_000,
            "interval between checks for expired tokens",
            at_least=1,
        ),
    ),
)
