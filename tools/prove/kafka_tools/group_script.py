"""Calls of Kafka's tools about groups: consuming, describing, resetting, deleting, and reading the group records."""

from __future__ import annotations

from tools.prove.kafka_tools.comparison import Step, call

# Names of members and hosts, which differ between runs.
MEMBER_NAMES = (r"console-consumer-[0-9a-f-]{36}", r"[0-9a-f]{8}-[0-9a-f-]{27}", r"\bID\b", "/[0-9.]+")
READ = "^(?!Processed)"
OFFSETS = "org.apache.kafka.tools.consumer.OffsetsMessageFormatter"
GROUPS = "org.apache.kafka.tools.consumer.GroupMetadataMessageFormatter"
INTERNAL = "console-consumer --topic __consumer_offsets --from-beginning --timeout-ms 20000 --formatter"
OURS = '"group":"(readers|fresh|modern)"'
LINES = "a:1\nb:2\nc:3\nd:4\ne:5\nf:6\n"

SCRIPT: tuple[Step, ...] = (
    call("topics --create --topic shared --partitions 3 --replication-factor 1"),
    call("topics --create --topic other --partitions 1 --replication-factor 1"),
    call("console-producer --topic shared --reader-property parse.key=true --reader-property key.separator=:", LINES),
    call("console-producer --topic other", "x\ny\n"),
    call("consumer-groups --list"),
    call("consumer-groups --describe --group absent"),
    call("console-consumer --topic shared --group readers --from-beginning --max-messages 6 --timeout-ms 20000", unordered=True, keep=READ),
    call("console-consumer --topic shared --group readers --timeout-ms 6000", keep=READ),
    call("console-consumer --topic other --group modern --from-beginning --max-messages 2 --timeout-ms 20000"
         " --command-property group.protocol=consumer", unordered=True, keep=READ),
    call("consumer-groups --list", unordered=True),
    call("consumer-groups --list --state", unordered=True),
    call("consumer-groups --list --type", unordered=True),
    call("consumer-groups --describe --group readers", unordered=True, forget=MEMBER_NAMES),
    call("consumer-groups --describe --group readers --state", forget=MEMBER_NAMES),
    call("consumer-groups --describe --group readers --members", forget=MEMBER_NAMES),
    call("consumer-groups --describe --group readers --members --verbose", forget=MEMBER_NAMES),
    call("consumer-groups --describe --group modern --state", forget=MEMBER_NAMES),
    call("consumer-groups --describe --group modern --offsets --verbose", forget=MEMBER_NAMES),
    call("consumer-groups --describe --all-groups", unordered=True, forget=MEMBER_NAMES),
    call("consumer-groups --reset-offsets --group readers --topic shared --to-earliest --dry-run", unordered=True),
    call("consumer-groups --reset-offsets --group readers --topic shared:0,1 --to-offset 1 --execute", unordered=True),
    call("consumer-groups --reset-offsets --group readers --all-topics --shift-by 1 --dry-run", unordered=True),
    call("consumer-groups --reset-offsets --group readers --all-topics --to-datetime 2020-01-01T00:00:00.000 --dry-run", unordered=True),
    call("consumer-groups --reset-offsets --group readers --all-topics --by-duration PT1S --export", unordered=True),
    call("consumer-groups --reset-offsets --group fresh --topic shared --to-latest --execute", unordered=True),
    call("consumer-groups --describe --group fresh", unordered=True, forget=MEMBER_NAMES),
    call("consumer-groups --delete-offsets --group readers --topic shared:2"),
    call("consumer-groups --delete-offsets --group readers --topic absent"),
    call("consumer-groups --describe --group readers", unordered=True, forget=MEMBER_NAMES),
    # The number of commits depends on timing, and groups of console consumers have random names.
    call(f"{INTERNAL} {OFFSETS}", unordered=True, distinct=True, keep=OURS),
    call(f"{INTERNAL} {GROUPS}", unordered=True, distinct=True, keep=OURS, forget=MEMBER_NAMES),
    call("configs --alter --entity-type groups --entity-name modern --add-config consumer.session.timeout.ms=50000"),
    call("configs --describe --entity-type groups --entity-name modern"),
    call("consumer-groups --delete --group readers"),
    call("consumer-groups --delete --group readers"),
    # Groups of console consumers have random names; those of 22 characters look like ids.
    call("groups --list", unordered=True, forget=(r"console-consumer-\d+", r"\bID\b")),
    call("consumer-groups --delete --all-groups", forget=(r"\(.*\)",)),
    call("consumer-groups --list"),
    call("topics --delete --topic shared"),
)  # fmt: skip
