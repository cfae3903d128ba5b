"""A classic group and its members as values, with the rules for leader election and the choice of a protocol.

A group in the table is never modified: a decision works on a draft and stores the draft when it is done.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from headrace.base.errors import ErrorCode, KafkaError
from headrace.coordinators.group.classic.states import TRANSITIONS, Event, State
from headrace.protocol.compiler import codec
from headrace.protocol.errors import DecodeError
from headrace.protocol.messages.embedded import ConsumerProtocolSubscription
from headrace.protocol.messages.join_group import JoinGroupRequest
from headrace.statemachine.machine import Ticket

CONSUMER_TYPE = "consumer"
NO_TIMESTAMP = -1
_VERSION_BYTES = 2  # size of the version in front of an embedded message

Protocols = tuple[tuple[str, bytes], ...]


class Member(Struct, frozen=True):
    id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: Protocols  # name and metadata, in the member's order of preference
    assignment: bytes = b""
    joining: Ticket | None = None  # its parked JoinGroup
    syncing: Ticket | None = None  # its parked SyncGroup
    is_new: bool = False  # has not received a generation yet, so it sends no heartbeats

    def metadata(self, protocol: str | None) -> bytes:
        return next((metadata for name, metadata in self.protocols if name == protocol), b"")


class ClassicGroup(Struct, eq=False):
    id: str
    state: State = State.EMPTY
    since_ms: int = NO_TIMESTAMP  # time of the last change of state
    generation: int = 0
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str | None = None
    members: dict[str, Member] = {}
    instances: dict[str, str] = {}  # static members: instance id to member id
    pending: dict[str, None] = {}  # member ids given out (MEMBER_ID_REQUIRED) that have not joined yet
    unsynced: dict[str, None] = {}  # members of the generation that have not synced yet
    support: dict[str, int] = {}  # number of members that support each protocol
    joined: int = 0  # members with a parked JoinGroup
    initial_remaining_ms: int | None = None  # how much longer joins may still delay the initial rebalance
    newcomers: bool = False  # whether a member joined since the initial delay last started
    subscribed: frozenset[str] | None = None  # topics that members are subscribed to, None if unknown

    def draft(self) -> ClassicGroup:
        return replace(
            self,
            members=dict(self.members),
            instances=dict(self.instances),
            pending=dict(self.pending),
            unsynced=dict(self.unsynced),
            support=dict(self.support),
        )

    # --- members

    def add(self, member: Member, protocol_type: str) -> None:
        if not self.members:
            self.protocol_type = protocol_type
        if self.leader is None:
            self.leader = member.id
        self.pending.pop(member.id, None)
        if member.instance_id is not None:
            self.instances[member.instance_id] = member.id
        self._put(None, member)

    def update(self, member: Member) -> None:
        """Replace the existing member with the same id."""
        self._put(self.members[member.id], member)

    def _put(self, old: Member | None, new: Member) -> None:
        if old is not None:
            self._discount(old)
        self.members[new.id] = new
        self.joined += new.joining is not None
        for name, _ in new.protocols:
            self.support[name] = self.support.get(name, 0) + 1

    def _discount(self, member: Member) -> None:
        self.joined -= member.joining is not None
        for name, _ in member.protocols:
            self.support[name] -= 1
            if not self.support[name]:
                del self.support[name]

    def remove(self, member_id: str) -> None:
        self.pending.pop(member_id, None)
        self.unsynced.pop(member_id, None)
        member = self.members.pop(member_id, None)
        if member is None:
            return
        self._discount(member)
        if member.instance_id is not None and self.instances.get(member.instance_id) == member_id:
            del self.instances[member.instance_id]
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)

    def rename(self, member_id: str, new_id: str) -> Member:
        """Change only the id of a static member that rejoined. The old id must have no parked request."""
        old = self.members.pop(member_id)
        assert old.instance_id is not None and old.joining is None and old.syncing is None
        self._discount(old)
        new = replace(old, id=new_id, is_new=False)
        self.instances[old.instance_id] = new_id
        self._put(None, new)
        self.unsynced.pop(member_id, None)
        if self.leader == member_id:
            self.leader = new_id
        return new

    def check_member(self, member_id: str, instance_id: str | None) -> None:
        if instance_id is not None:
            holder = self.instances.get(instance_id)
            if holder is not None and holder != member_id:
                raise KafkaError(ErrorCode.FENCED_INSTANCE_ID)
            if holder is None:
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        if member_id not in self.members:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)

    # --- the rebalance

    def move(self, event: Event, now_ms: int) -> None:
        was_empty = self.state is State.EMPTY
        self.state = TRANSITIONS[self.state, event]
        self.since_ms = now_ms
        if not (was_empty and event is Event.REBALANCE):
            self.initial_remaining_ms = None

    @property
    def can_rebalance(self) -> bool:
        return (self.state, Event.REBALANCE) in TRANSITIONS

    @property
    def is_initial(self) -> bool:
        """Return whether this is the first rebalance after the group was empty, which waits for more members."""
        return self.initial_remaining_ms is not None

    @property
    def all_joined(self) -> bool:
        return self.joined == len(self.members) and not self.pending

    @property
    def rebalance_timeout_ms(self) -> int:
        return max([0, *(member.rebalance_timeout_ms for member in self.members.values())])

    def knows(self, protocol_type: str, names: Sequence[str]) -> bool:
        """Return whether a member that offers these protocols can join."""
        if self.state is State.EMPTY:
            return bool(protocol_type) and bool(names)
        everybody = len(self.members)
        return self.protocol_type == protocol_type and any(self.support.get(name, 0) == everybody for name in names)

    def elect_leader(self) -> bool:
        """Make a joined member the leader, if possible the old leader. Return False if no member has joined."""
        if self.leader is None:
            return False
        if self.members[self.leader].joining is not None:
            return True
        joined = next((member.id for member in self.members.values() if member.joining is not None), None)
        if joined is not None:
            self.leader = joined
        return joined is not None

    def select_protocol(self) -> str:
        """Return the protocol with the most votes; among equals, the one that was voted for first.

        Each member votes for the first of its protocols that all members support.
        """
        everybody = len(self.members)
        votes: dict[str, int] = {}
        for member in self.members.values():
            choice = next(name for name, _ in member.protocols if self.support[name] == everybody)
            votes[choice] = votes.get(choice, 0) + 1
        return max(votes, key=lambda name: votes[name])

    def begin_generation(self, now_ms: int) -> None:
        self.generation += 1
        self.protocol = self.select_protocol() if self.members else None
        self.subscribed = self.find_subscribed()
        self.unsynced.clear()
        self.move(Event.ALL_JOINED if self.members else Event.ALL_LEFT, now_ms)

    # --- subscriptions

    def find_subscribed(self) -> frozenset[str] | None:
        """Return the topics that members are subscribed to, or None if they cannot be determined."""
        if self.protocol_type != CONSUMER_TYPE or (self.members and self.protocol is None):
            return None
        topics: dict[str, None] = {}
        for member in self.members.values():
            metadata = member.metadata(self.protocol)
            try:
                # All versions start with the fields of version 0.
                subscription = codec(ConsumerProtocolSubscription, 0).decode(metadata, _VERSION_BYTES)
            except DecodeError:
                return None
            topics.update(dict.fromkeys(subscription.topics))
        return frozenset(topics)

    def is_subscribed(self, topic: str) -> bool:
        return self.protocol_type == CONSUMER_TYPE if self.subscribed is None else topic in self.subscribed


def protocols_of(offered: Iterable[JoinGroupRequest.JoinGroupRequestProtocol]) -> Protocols:
    """Return the offered protocols; of duplicate names, the first counts."""
    protocols: dict[str, bytes] = {}
    for protocol in offered:
        protocols.setdefault(protocol.name, protocol.metadata)
    return tuple(protocols.items())
