"""What an assignor is told and what it answers.

Every partition of a topic that somebody is subscribed to gets exactly one member among the subscribed. The answer depends on nothing
but the question: members and topics are looked at in the order of their ids. Racks are told, but as in Kafka 4.3 no assignor minds them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from headrace.base.ids import Uuid

Assignment = Mapping[Uuid, tuple[int, ...]]  # partitions by topic, ascending; no topic without partitions
NO_PARTITIONS: Assignment = {}


class MemberSpec(Struct, frozen=True):
    member_id: str
    topics: tuple[Uuid, ...]  # subscribed to, and there; ascending
    target: Assignment = NO_PARTITIONS  # what the last assignment gave it
    instance_id: str | None = None
    rack: str | None = None


Assignor = Callable[[Sequence[MemberSpec], Mapping[Uuid, int]], dict[str, Assignment]]  # told partitions by topic
