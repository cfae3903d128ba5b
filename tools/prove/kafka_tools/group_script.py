"""Calls of Kafka's tools about groups: consuming, describing, resetting, deleting, and reading the group records."""

from __future__ import annotations

from tools.prove.kafka_tools.comparison import Step, step

# Member and host names, which differ between runs.
WHO = (r"console-consumer-[0-9a-f-]{36}", r"[0-9a-f]{8}-[0-9a-f-]{27}", r"\bID\b", "/[0-9.]+")
READ = "^(?!Processed)"
OFFSETS = "org.apache.kafka.tools.consumer.OffsetsMessageFormatter"
GROUPS = "org.apache.kafka.tools.consumer.GroupMetadataMessageFormatter"
INTERNAL = "console-consumer --topic __consumer_offsets --from-beginning --timeout-ms 20000 --formatter"
OURS = '"group":"(readers|fresh|modern)"'
LINES = "a:1\nb:2\nc:3\nd:4\ne:5\nf:6\n"

SCRIPT: tuple[Step, ...] = (
    step("topics --create --topic shared --partitions 3 --replication-factor 1"),
    step("topics --create --topic other --partitions 1 --replication-factor 1"),
    step("console-producer --topic shared --reader-property parse.key=true --reader-property key.separator=:", LINES),
    step("console-producer --topic other", "x\ny\n"),
    step("consumer-groups --list"),
    step("consumer-groups --describe --group absent"),
    step("console-consumer --topic shared --group readers --from-beginning --max-messages 6 --timeout-ms 20000", unordered=True, keep=READ),
    step("console-consumer --topic shared --group readers --timeout-ms 6000", keep=READ),
    step("console-consumer --topic other --group modern --from-beginning --max-messages 2 --timeout-ms 20000"
         " --command-property group.protocol=consumer", unordered=True, keep=READ),
    step("consumer-groups --list", unordered=True),
    step("consumer-groups --list --state", unordered=True),
    step("consumer-groups --list --type", unordered=True),
    step("consumer-groups --describe --group readers", unordered=True, forget=WHO),
    step("consumer-groups --describe --group readers --state", forget=WHO),
    step("consumer-groups --describe --group readers --members", forget=WHO),
    step("consumer-groups --describe --group readers --members --verbose", forget=WHO),
    step("consumer-groups --describe --group modern --state", forget=WHO),
    step("consumer-groups --describe --group modern --offsets --verbose", forget=WHO),
    step("consumer-groups --describe --all-groups", unordered=True, forget=WHO),
    step("consumer-groups --reset-offsets --group readers --topic shared --to-earliest --dry-run", unordered=True),
    step("consumer-groups --reset-offsets --group readers --topic shared:0,1 --to-offset 1 --execute", unordered=True),
    step("consumer-groups --reset-offsets --group readers --all-topics --shift-by 1 --dry-run", unordered=True),
    step("consumer-groups --reset-offsets --group readers --all-topics --to-datetime 2020-01-01T00:00:00.000 --dry-run", unordered=True),
    step("consumer-groups --reset-offsets --group readers --all-topics --by-duration PT1S --export", unordered=True),
    step("consumer-groups --reset-offsets --group fresh --topic shared --to-latest --execute", unordered=True),
    step("consumer-groups --describe --group fresh", unordered=True, forget=WHO),
    step("consumer-groups --delete-offsets --group readers --topic shared:2"),
    step("consumer-groups --delete-offsets --group readers --topic absent"),
    step("consumer-groups --describe --group readers", unordered=True, forget=WHO),
    # The number of commits depends on timing, and groups of console consumers have random names.
    step(f"{INTERNAL} {OFFSETS}", unordered=True, distinct=True, keep=OURS),
    step(f"{INTERNAL} {GROUPS}", unordered=True, distinct=True, keep=OURS, forget=WHO),
    step("configs --alter --entity-type groups --entity-name modern --add-config consumer.session.timeout.ms=50000"),
    step("configs --describe --entity-type groups --entity-name modern"),
    step("consumer-groups --delete --group readers"),
    step("consumer-groups --delete --group readers"),
    # Groups of console consumers have random names; those of 22 characters have been taken for ids.
    step("groups --list", unordered=True, forget=(r"console-consumer-\d+", r"\bID\b")),
    step("consumer-groups --delete --all-groups", forget=(r"\(.*\)",)),
    step("consumer-groups --list"),
    step("topics --delete --topic shared"),
)  # fmt: skip
