"""Roles of a replica in the quorum, and which role may follow which.

    unattached ──election timeout──▶ prospective ──majority would vote──▶ candidate ──majority voted──▶ leader ──▶ resigned
         ▲                               ▲  │                                                              │          │
         └───────── follower ◀── learns of a leader (from every role) ─────── newer epoch (from every role) ▶ unattached

A *prospective* voter asks whether the others would vote for it before it starts a new epoch (pre-vote, KIP-996): a voter that was cut off
for a while does not depose a leader that the majority can reach. A *resigned* leader waits for its successor. Observers are only ever
unattached or followers.
"""

from __future__ import annotations

from enum import Enum


class Role(Enum):
    UNATTACHED = "unattached"
    PROSPECTIVE = "prospective"
    CANDIDATE = "candidate"
    LEADER = "leader"
    FOLLOWER = "follower"
    RESIGNED = "resigned"


TRANSITIONS: dict[Role, frozenset[Role]] = {
    # A newer epoch makes a replica of any role unattached or, if its leader is known, a follower.
    Role.UNATTACHED: frozenset({Role.UNATTACHED, Role.PROSPECTIVE, Role.FOLLOWER}),
    Role.PROSPECTIVE: frozenset({Role.CANDIDATE, Role.UNATTACHED, Role.FOLLOWER}),
    Role.CANDIDATE: frozenset({Role.LEADER, Role.PROSPECTIVE, Role.UNATTACHED, Role.FOLLOWER}),
    Role.LEADER: frozenset({Role.RESIGNED, Role.UNATTACHED, Role.FOLLOWER}),
    Role.FOLLOWER: frozenset({Role.FOLLOWER, Role.PROSPECTIVE, Role.UNATTACHED}),
    Role.RESIGNED: frozenset({Role.UNATTACHED, Role.FOLLOWER}),
}
