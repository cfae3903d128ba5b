"""The first voters of a dynamic quorum (KIP-853), which `headrace format` writes for the first start."""

from __future__ import annotations

import re
from random import Random

from headrace.base.errors import ConfigError
from headrace.base.ids import NodeId, Uuid, new_uuid, uuid_from_text
from headrace.node.configuration.settings import Settings
from headrace.node.wiring.quorum import controller_listener, own_voter
from headrace.raft.voters import Endpoint, ReplicaKey, Voter, VoterSet

INITIAL_CONTROLLERS = "--initial-controllers"
PORT_MAX = 65535
_CONTROLLER = re.compile(r"(\d{1,9})@(\[[^\]]+\]|[^\[\]:@]+):(\d{1,5}):([A-Za-z0-9_-]{22})")


def standalone(settings: Settings, random: Random) -> VoterSet:
    """Return a set with this node alone and a new directory id. Raise ConfigError if others could never reach it."""
    voter = own_voter(settings, new_uuid(random))
    if not voter.endpoints or any(endpoint.port == 0 for endpoint in voter.endpoints):
        raise ConfigError("the only voter of a dynamic quorum needs a controller listener with a port")
    return VoterSet([voter])


def parse_initial_controllers(text: str, settings: Settings) -> VoterSet:
    """Parse id@host:port:directory-id, separated by commas. Raise ConfigError if one is invalid or this node is not among them."""
    listener = controller_listener(settings)
    voters: dict[NodeId, Voter] = {}
    for part in text.split(","):
        found = _CONTROLLER.fullmatch(part.strip())
        if found is None or not 0 < int(found[3]) <= PORT_MAX:
            raise ConfigError(f"{INITIAL_CONTROLLERS} {part.strip()!r}: expected id@host:port:directory-id")
        node_id = NodeId(int(found[1]))
        try:
            directory_id = uuid_from_text(found[4])
        except ValueError as error:
            raise ConfigError(f"{INITIAL_CONTROLLERS} {part.strip()!r}: {error}") from error
        if node_id in voters:
            raise ConfigError(f"{INITIAL_CONTROLLERS}: node {node_id} appears twice")
        host = found[2].strip("[]")
        voters[node_id] = Voter(ReplicaKey(node_id, directory_id), (Endpoint(listener, host, int(found[3])),))
    if settings.node_id not in voters:
        raise ConfigError(
            f"{INITIAL_CONTROLLERS}: this node ({settings.node_id}) is not among them; format it with --no-initial-controllers"
        )
    return VoterSet(voters.values())


def directory_in(voters: VoterSet, node_id: NodeId) -> Uuid:
    voter = voters.get(node_id)
    assert voter is not None, f"node {node_id} is no voter"
    return voter.key.directory
