"""A node with SASL PLAIN logins and ACLs, and the matching client options; only `admin` is a super user."""

from __future__ import annotations

import random
from typing import Any

from headrace.client.wire.options import CLIENT_OPTIONS
from headrace.client.wire.security import ClientSecurity, make_security
from headrace.security.jaas import PLAIN_MODULE
from headrace.testing.cluster import LOOPBACK

PASSWORD = "geheim"
STANDARD_AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
LISTENER, CONTROLLER = "SASL_PLAINTEXT", "CONTROLLER"


def server_settings(*users: str) -> dict[str, str]:
    """Return settings with a login on both listeners: `admin` may do everything, `users` what ACLs allow."""
    logins = " ".join(f'user_{user}="{PASSWORD}"' for user in ("admin", *users))
    return {
        "listeners": f"{LISTENER}://{LOOPBACK}:0,{CONTROLLER}://{LOOPBACK}:0",
        "controller.listener.names": CONTROLLER,
        "listener.security.protocol.map": f"{LISTENER}:SASL_PLAINTEXT,{CONTROLLER}:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        **{
            f"listener.name.{name.lower()}.plain.sasl.jaas.config": f"{PLAIN_MODULE} required {logins};"
            for name in (LISTENER, CONTROLLER)
        },
        "authorizer.class.name": STANDARD_AUTHORIZER,
        "super.users": "User:admin",
    }


def login_options(user: str) -> dict[str, str]:
    """Return the options for our client and for properties files."""
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": f'{PLAIN_MODULE} required username="{user}" password="{PASSWORD}";',
    }


def librdkafka_options(user: str) -> dict[str, Any]:
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": user,
        "sasl.password": PASSWORD,
        "log_level": 0,
    }


def login(user: str) -> ClientSecurity:
    """Return the security settings of one bare connection."""
    values = {name: option.default for name, option in CLIENT_OPTIONS.items()}
    return make_security({**values, **login_options(user)}, random.Random(3))
