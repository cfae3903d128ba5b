"""Texts that operators write: login lines, mapping rules, --add-scram, super users, cipher suites."""

from __future__ import annotations

import random
import ssl
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.base.errors import ConfigError
from headrace.security.cipher_suites import TLS_1_3, openssl_name
from headrace.security.credentials import ScramMechanism, credential_from_salted, salted_password
from headrace.security.jaas import PLAIN_MODULE, parse_login
from headrace.security.principal_mapping import principal_mapping
from headrace.security.principals import Principal, parse_super_users
from headrace.security.scram_arguments import parse_scram_argument

NAME = "CN=kafka01.example.com,OU=Data Pipes,O=Example,L=Berlin,ST=BE,C=DE"


def test_a_kafka_jaas_login_line_is_parsed() -> None:
    login = parse_login(
        "o", f'{PLAIN_MODULE} required username="admin" password=\'p;w\' user_admin="p\\"w" user_bob=plain ;'
    )
    assert login.module == PLAIN_MODULE and login.options["password"] == "p;w"
    assert login.users == {"admin": 'p"w', "bob": "plain"}
    assert "p;w" not in repr(login)


@pytest.mark.parametrize(
    "text",
    ["", PLAIN_MODULE, f"{PLAIN_MODULE} required user_a=secret", f"{PLAIN_MODULE} maybe user_a=secret;",
     f'{PLAIN_MODULE} required user_a="secret;', f"{PLAIN_MODULE} required user_a=secret; other.Module required;"],
)  # fmt: skip
def test_the_error_for_a_bad_login_line_names_the_option_and_hides_the_secret(text: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_login("listener.name.x.plain.sasl.jaas.config", text)
    assert "listener.name.x.plain.sasl.jaas.config" in str(error.value) and "secret" not in str(error.value)


@settings(deadline=None, max_examples=200)
@given(st.text(max_size=60), st.integers(0, 3))
def test_the_parsers_raise_nothing_but_config_error_for_any_text(text: str, which: int) -> None:
    parsers: list[Callable[[], object]] = [
        lambda: parse_login("o", f"a.B required {text}"),
        lambda: principal_mapping(text),
        lambda: parse_scram_argument(f"SCRAM-SHA-256=[{text}]", random.Random(1)),
        lambda: parse_super_users(text),
    ]
    try:
        parsers[which]()
    except ConfigError as error:
        assert str(error)


@pytest.mark.parametrize(
    ("rules", "mapped"),
    [
        ("DEFAULT", NAME),
        ("RULE:^CN=(.*?),OU=.*$/$1/", "kafka01.example.com"),
        ("RULE:^CN=(.*?),.*$/$1/U", "KAFKA01.EXAMPLE.COM"),
        ("RULE:^.*L=(.*?),.*$/$1/L", "berlin"),
        ("RULE:^CN=nobody$/x/, RULE:^CN=([^,]*),OU=([^,]*),.*$/$1@$2/", "kafka01.example.com@Data Pipes"),
        (r"RULE:^CN=(.*?),.*$/$1\/$3/", "kafka01.example.com/$3"),
        (r"RULE:^(CN)=.*$/$12/", "CN2"),
        ("RULE:^CN=nobody$/x/,DEFAULT", NAME),
        ("RULE:^CN=nobody$/x/", None),
    ],
)
def test_mapping_rules_map_distinguished_names(rules: str, mapped: str | None) -> None:
    assert principal_mapping(rules)(NAME) == mapped


@pytest.mark.parametrize("rules", ["RULE:", "RULE:a/b", "default", "RULE:(/x/", "DEFAULT;DEFAULT", "RULE:a/b/X"])
def test_bad_mapping_rules_are_refused(rules: str) -> None:
    with pytest.raises(ConfigError, match=r"ssl\.principal\.mapping\.rules"):
        principal_mapping(rules)


def test_super_user_names_may_contain_commas() -> None:
    assert parse_super_users(" User:CN=a,O=b ; User:bob;") == {Principal("User", "CN=a,O=b"), Principal("User", "bob")}
    with pytest.raises(ConfigError, match=r"super\.users"):
        parse_super_users("alice")


def test_kafka_scram_arguments_are_parsed() -> None:
    user = parse_scram_argument("SCRAM-SHA-256=[name=alice,password=a secret=word]", random.Random(3))
    assert (user.name, user.mechanism, user.credential.iterations) == ("alice", ScramMechanism.SHA_256, 4096)
    salt = user.credential.salt
    assert user.credential == credential_from_salted(
        ScramMechanism.SHA_256, salted_password(ScramMechanism.SHA_256, "a secret=word", salt, 4096), salt, 4096
    )
    given = 'SCRAM-SHA-512=[name="a,b",iterations=8192,salt="MWx2NHBkbnc0ZndxN25vdGN4bTB5Yno=",saltedpassword="AAAA"]'
    user = parse_scram_argument(given, random.Random(3))
    assert (user.name, user.credential.iterations) == ("a,b", 8192)
    assert user.credential.salt == b"1lv4pdnw4fwq7notcxm0ybz"


@pytest.mark.parametrize(
    "text",
    ["", "SCRAM-SHA-1=[name=a,password=geheim]", "SCRAM-SHA-256=[password=geheim]", "SCRAM-SHA-256=[name=a]",
     "SCRAM-SHA-256=[name=a,password=geheim,iterations=10]", "SCRAM-SHA-256=[name=a,password=geheim,iterations=99999]",
     "SCRAM-SHA-256=[name=a,password=geheim,iterations=x]", "SCRAM-SHA-256=[name=a,saltedpassword=geheim]",
     "SCRAM-SHA-256=[name=a,password=geheim,salt=!]", "SCRAM-SHA-256=[name=a,name=b,password=geheim]",
     "SCRAM-SHA-256=[name=a,password=geheim,colour=red]"],
)  # fmt: skip
def test_the_error_for_a_bad_scram_argument_hides_the_password(text: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_scram_argument(text, random.Random(3))
    assert "--add-scram" in str(error.value) and "geheim" not in str(error.value)


def test_java_cipher_suite_names_are_translated_to_openssl_names() -> None:
    known = {cipher["name"] for cipher in ssl.create_default_context().get_ciphers()}
    for suite in (
        "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
        "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
        "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
        "TLS_DHE_RSA_WITH_AES_256_GCM_SHA384",
        "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA384",
    ):
        assert openssl_name(suite) in known
    assert known >= set(TLS_1_3)
    assert openssl_name("ECDHE-RSA-AES128-SHA256") == "ECDHE-RSA-AES128-SHA256"
    with pytest.raises(ValueError, match="TLS_NONSENSE"):
        openssl_name("TLS_NONSENSE")
