"""The input and output of an assignor.

Every partition of a subscribed topic is assigned to exactly one of the topic's subscribers. The result depends only on the input: members
and topics are processed in the order of their ids. The input includes racks but, as in Kafka 4.3, no assignor uses them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from headrace.base.ids import Uuid

Assignment = Mapping[Uuid, tuple[int, ...]]  # partitions by topic, ascending; no topic without partitions
NO_PARTITIONS: Assignment = {}


class MemberSpec(Struct, frozen=True):
    member_id: str
    topics: tuple[Uuid, ...]  # existing topics that it is subscribed to, ascending
    target: Assignment = NO_PARTITIONS  # its partitions in the last assignment
    instance_id: str | None = None
    rack: str | None = None


# Takes the members and the number of partitions of each topic.
Assignor = Callable[[Sequence[MemberSpec], Mapping[Uuid, int]], dict[str, Assignment]]
