"""The command line against a real node: what it prints, and that mistakes end in one clear line and exit code 1."""

import json

import pytest
from typer.testing import CliRunner

from headrace.base.errors import HeadraceError
from headrace.cli.app import app


@pytest.fixture
def headrace(headrace_cluster):
    def run(*arguments, stdin=None, fails=False):
        with_bootstrap = arguments[0] not in ("dump-log", "format")
        extra = ["-b", headrace_cluster.bootstrap] if with_bootstrap else []
        result = CliRunner().invoke(app, [*arguments, *extra], input=stdin)
        if fails:
            assert result.exit_code != 0
            return str(result.exception) if isinstance(result.exception, HeadraceError) else result.output
        assert result.exit_code == 0, result.output + str(result.exception)
        return result.stdout

    return run


def test_topics_from_birth_to_death(headrace):
    assert "3 partition(s)" in headrace(
        "topics", "create", "cli-life", "--partitions", "3", "--config", "retention.ms=5"
    )
    assert "TOPIC_ALREADY_EXISTS" in headrace("topics", "create", "cli-life", fails=True)
    assert "exists already" in headrace("topics", "create", "cli-life", "--if-not-exists")
    described = json.loads(headrace("topics", "describe", "cli-life", "--json"))
    assert len(described["partitions"]) == 3 and described["options"] == {"retention.ms": "5"}
    assert "cli-life" in headrace("topics", "list") and "retention.ms=5" in headrace("topics", "describe", "cli-life")
    assert any(topic["name"] == "cli-life" for topic in json.loads(headrace("topics", "list", "--json")))
    headrace("topics", "delete", "cli-life")
    assert "UNKNOWN_TOPIC_OR_PARTITION" in headrace("topics", "delete", "cli-life", fails=True)
    assert "cli-life" not in headrace("topics", "list")


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_lines_go_in_and_come_out(headrace, codec):
    topic = f"cli-{codec}"
    headrace("produce", topic, "-z", codec, "-k", ":", "-H", "h=1", stdin="a:1\nb:2\nplain\n")
    shown = [json.loads(line) for line in headrace("consume", topic, "-e", "-f", "json").splitlines()]
    assert [(one["offset"], one["key"], one["value"]) for one in shown] == [
        (0, "a", "1"),
        (1, "b", "2"),
        (2, None, "plain"),
    ]
    assert shown[0]["headers"] == [["h", "1"]]
    assert headrace("consume", topic, "-o", "1", "-n", "1") == "2\n"
    assert headrace("consume", topic, "-o", "2", "-e", "-f", "key-value") == "\tplain\n"
    assert headrace("consume", topic, "-o", "latest", "-e") == ""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("topics", "create", "no/such"), "INVALID_TOPIC_EXCEPTION"),
        (("topics", "create", "x", "--config", "oops"), "name=value"),
        (("topics", "create", "x", "--config", "no.such=1"), "no.such"),
        (("produce", "x", "-z", "rar"), "rar"),
        (("produce", "x", "--acks", "7"), "acks"),
        (("consume", "cli-none", "-o", "yesterday"), "yesterday"),
        (("consume", "cli-none", "-f", "xml"), "xml"),
        (("consume", "there-is-no-such"), "UNKNOWN_TOPIC_OR_PARTITION"),
    ],
)
def test_mistakes_are_named(headrace, arguments, said):
    assert said in headrace(*arguments, stdin="", fails=True)


def test_dump_log_shows_and_checks(headrace, headrace_cluster, tmp_path):
    headrace("produce", "cli-dump", stdin="one\ntwo\n")
    directory = headrace_cluster.data_dir / "cli-dump-0"
    shown = headrace("dump-log", "--print-data-log", str(directory / "00000000000000000000.log"))
    assert "count: 2" in shown and "value: one" in shown and "value: two" in shown
    metadata = headrace_cluster.data_dir / "__cluster_metadata-0" / "00000000000000000000.log"
    assert "TopicRecord(name='cli-dump'" in headrace("dump-log", "--cluster-metadata-decoder", str(metadata))
    damaged = tmp_path / "00000000000000000000.log"
    damaged.write_bytes((directory / damaged.name).read_bytes()[:-1] + b"!")
    assert "WRONG" in headrace("dump-log", str(damaged), fails=True)
    assert "WRONG" in headrace("dump-log", str(tmp_path / "missing.index"), fails=True)


def test_format_once(headrace, tmp_path):
    setting = f"log.dirs={tmp_path / 'data'}"
    cluster = "AAAAAAAAAAAAAAAAAAAAAw"
    assert cluster in headrace("format", "-c", setting, "-t", cluster)
    assert "formatted already" in headrace("format", "-c", setting, fails=True)
    assert cluster in headrace("format", "-c", setting, "--ignore-formatted")
    assert "not a UUID" in headrace("format", "-c", setting, "-t", "?", fails=True)
    assert f"cluster.id={cluster}" in (tmp_path / "data" / "meta.properties").read_text()
    assert (tmp_path / "data" / "bootstrap.checkpoint").stat().st_size > 100
