"""The `range` assignor, which gives each subscriber of a topic one contiguous range of its partitions.

Members have the same order for all topics, so topics with the same number of partitions and the same subscribers are split alike: the
member with partition 3 of one also has partition 3 of the other. Static members come first, by instance id: a restart moves nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace.base.ids import Uuid
from headrace.coordinators.group.assignors.spec import Assignment, MemberSpec


def assign_range(members: Sequence[MemberSpec], partitions: Mapping[Uuid, int]) -> dict[str, Assignment]:
    subscribers: dict[Uuid, list[str]] = {topic: [] for topic in sorted(partitions)}
    ordered = sorted(members, key=_sort_key)
    for member in ordered:
        for topic in member.topics:
            subscribers[topic].append(member.member_id)
    response: dict[str, dict[Uuid, tuple[int, ...]]] = {member.member_id: {} for member in ordered}
    for topic, takers in subscribers.items():
        if not takers:
            continue
        share, extra = divmod(partitions[topic], len(takers))
        start = 0
        for position, taker in enumerate(takers):
            end = start + share + (position < extra)
            if end == start:
                break
            response[taker][topic] = tuple(range(start, end))
            start = end
    return dict(response)


def _sort_key(member: MemberSpec) -> tuple[bool, str]:
    return (True, member.member_id) if member.instance_id is None else (False, member.instance_id)
