"""Options of logins that this version does not support: Kerberos, OAUTHBEARER, and this node's logins to other servers."""

from __future__ import annotations

from headrace.options.node.reasons import PLUGINS
from headrace.options.table import Kind, Option, OptionTable, unused

OTHER_LOGINS_OPTIONS = OptionTable(
    *unused(
        "GSSAPI is not supported",
        Option("sasl.kerberos.kinit.cmd", Kind.STRING, "/usr/bin/kinit", "the kinit command"),
        Option("sasl.kerberos.min.time.before.relogin", Kind.LONG, 60000, "least time between two logins"),
        Option(
            "sasl.kerberos.principal.to.local.rules",
            Kind.LIST,
            ["DEFAULT"],
            "how a Kerberos name becomes the name of a user",
        ),
        Option("sasl.kerberos.service.name", Kind.STRING, None, "the name of the service"),
        Option("sasl.kerberos.ticket.renew.jitter", Kind.DOUBLE, 0.05, "random part of the time to renew a ticket"),
        Option(
            "sasl.kerberos.ticket.renew.window.factor",
            Kind.DOUBLE,
            0.8,
            "share of a ticket's life after which it is renewed",
        ),
    ),
    *unused(
        "OAUTHBEARER is not supported",
        Option("sasl.login.connect.timeout.ms", Kind.INT, None, "how long connecting to a token endpoint may take"),
        Option("sasl.login.read.timeout.ms", Kind.INT, None, "how long its response may take"),
        Option(
            "sasl.login.refresh.buffer.seconds",
            Kind.SHORT,
            300,
            "time before the end of a token at which a new one is fetched",
        ),
        Option("sasl.login.refresh.min.period.seconds", Kind.SHORT, 60, "least time between two tokens"),
        Option(
            "sasl.login.refresh.window.factor",
            Kind.DOUBLE,
            0.8,
            "share of a token's life after which a new one is fetched",
        ),
        Option("sasl.login.refresh.window.jitter", Kind.DOUBLE, 0.05, "random part of it"),
        Option("sasl.login.retry.backoff.ms", Kind.LONG, 100, "pause before a token is requested again"),
        Option("sasl.login.retry.backoff.max.ms", Kind.LONG, 10000, "the longest such pause"),
        Option("sasl.oauthbearer.jwks.endpoint.url", Kind.STRING, None, "where the keys of the issuer are"),
        Option("sasl.oauthbearer.jwks.endpoint.refresh.ms", Kind.LONG, 3_600_000, "how often they are fetched"),
        Option(
            "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms", Kind.LONG, 100, "pause before they are fetched again"
        ),
        Option("sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms", Kind.LONG, 10000, "the longest such pause"),
        Option("sasl.oauthbearer.expected.audience", Kind.LIST, [], "the audience that a token must name"),
        Option("sasl.oauthbearer.expected.issuer", Kind.STRING, None, "the issuer that a token must name"),
        Option("sasl.oauthbearer.clock.skew.seconds", Kind.INT, 30, "by how much clocks may differ"),
        Option("sasl.oauthbearer.scope", Kind.STRING, None, "the scope of the broker's own token"),
        Option("sasl.oauthbearer.scope.claim.name", Kind.STRING, "scope", "the claim with the scope"),
        Option("sasl.oauthbearer.sub.claim.name", Kind.STRING, "sub", "the claim with the name of the user"),
        Option("sasl.oauthbearer.token.endpoint.url", Kind.STRING, None, "endpoint of the broker's own token"),
        Option("sasl.oauthbearer.client.credentials.client.id", Kind.STRING, None, "the client id for it"),
        Option("sasl.oauthbearer.client.credentials.client.secret", Kind.PASSWORD, None, "the secret for it"),
        Option(
            "sasl.oauthbearer.assertion.algorithm", Kind.STRING, "RS256", "how the broker's own assertion is signed"
        ),
        Option("sasl.oauthbearer.assertion.claim.aud", Kind.STRING, None, "audience of the assertion"),
        Option(
            "sasl.oauthbearer.assertion.claim.exp.seconds",
            Kind.INT,
            300,
            "life of the assertion",
            at_least=0,
            at_most=86400,
        ),
        Option("sasl.oauthbearer.assertion.claim.iss", Kind.STRING, None, "issuer of the assertion"),
        Option("sasl.oauthbearer.assertion.claim.jti.include", Kind.BOOLEAN, False, "whether the assertion has an id"),
        Option(
            "sasl.oauthbearer.assertion.claim.nbf.seconds",
            Kind.INT,
            60,
            "how long before now the assertion is valid",
            at_least=0,
            at_most=3600,
        ),
        Option("sasl.oauthbearer.assertion.claim.sub", Kind.STRING, None, "subject of the assertion"),
        Option("sasl.oauthbearer.assertion.file", Kind.STRING, None, "a file with an assertion"),
        Option("sasl.oauthbearer.assertion.private.key.file", Kind.STRING, None, "the key that signs the assertion"),
        Option("sasl.oauthbearer.assertion.private.key.passphrase", Kind.PASSWORD, None, "the passphrase of that key"),
        Option("sasl.oauthbearer.assertion.template.file", Kind.STRING, None, "a template of the assertion"),
        Option(
            "sasl.oauthbearer.jwt.retriever.class",
            Kind.CLASS,
            "org.apache.kafka.common.security.oauthbearer.DefaultJwtRetriever",
            "a class that fetches tokens",
        ),
        Option(
            "sasl.oauthbearer.jwt.validator.class",
            Kind.CLASS,
            "org.apache.kafka.common.security.oauthbearer.DefaultJwtValidator",
            "a class that checks tokens",
        ),
    ),
    *unused(
        PLUGINS,
        Option("sasl.client.callback.handler.class", Kind.CLASS, None, "a class with the broker's own credentials"),
        Option("sasl.login.callback.handler.class", Kind.CLASS, None, "a class that logs in"),
        Option("sasl.login.class", Kind.CLASS, None, "a class that keeps the login fresh"),
    ),
)
