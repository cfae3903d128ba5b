"""Builds this node's replica of the metadata log: raft, its files, and the links to the other controllers."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

from msgspec.structs import replace

from headrace.base.ids import Uuid
from headrace.client.retry import Backoff
from headrace.client.wire.node_link import LinkOptions
from headrace.node.configuration.settings import Settings
from headrace.node.context import NodeContext
from headrace.node.new_cluster.feature_levels import KRAFT, SUPPORTED_FEATURES
from headrace.node.wiring.link_options import controller_link_options
from headrace.quorum.controller_addresses import ControllerAddresses
from headrace.quorum.driver import QuorumDriver, ReplicaFiles
from headrace.quorum.log_view import MetadataLogView
from headrace.quorum.opening import StoredMetadata
from headrace.quorum.peers import LinkedPeers, NoPeers
from headrace.quorum.requests import FETCH_WAIT_MS, Sender
from headrace.quorum.store import ElectionStore
from headrace.quorum.voter_records import VoterRecords
from headrace.raft.election import Timeouts
from headrace.raft.node import RaftNode
from headrace.raft.voters import Endpoint, ReplicaKey, Voter, VoterSet
from headrace.storage.files import Files

RECONNECT_S_MAX = 0.3  # pause after failed attempts to connect: a voter that returns is found within this time


def make_driver(
    node: NodeContext, files: Files, directory: str, stored: StoredMetadata, directory_id: Uuid
) -> tuple[QuorumDriver, ControllerAddresses]:
    """Return the replica whose files are in `directory`, and where it finds the others."""
    settings = node.settings
    configured = configured_voters(settings)
    store = ElectionStore(files, directory, configured.ids)
    if not configured.ids and stored.log.end_offset and store.load_static_voters() == [settings.node_id]:
        # It was alone until it was told of other controllers; only a record in the log makes them voters.
        configured = VoterSet.of_ids(settings.node_id)
    history = stored.history(configured)
    addresses = ControllerAddresses(
        lambda: history.current, controller_listener(settings), settings.bootstrap_controllers
    )
    raft = RaftNode(
        ReplicaKey(settings.node_id, directory_id),
        history,
        store.load(),
        MetadataLogView(stored.log, stored.snapshots),
        timeouts_of(settings),
        node.random,
        addresses.bootstrap_ids,
    )
    driver = QuorumDriver(
        raft,
        ReplicaFiles(stored.log, stored.snapshots, store),
        _make_peers(node, raft, addresses),
        node.loop,
        stored.voters if stored.log.end_offset == 0 else VoterRecords(),
    )
    return driver, addresses


def _make_peers(node: NodeContext, raft: RaftNode, addresses: ControllerAddresses) -> LinkedPeers | NoPeers:
    settings = node.settings
    if not settings.controller_listeners:
        return NoPeers()  # a controller that no other node can reach
    times = timeouts_of(settings)
    sender = Sender(
        raft.key,
        node.cluster_id,
        own_voter(settings, raft.key.directory).endpoints,
        settings.number("controller.quorum.fetch.max.bytes"),
        settings.number("controller.quorum.fetch.snapshot.max.bytes"),
        min(FETCH_WAIT_MS, times.request_ms // 2, times.fetch_ms // 2),  # a held fetch must not time out
    )
    options = cache(lambda: quorum_link_options(node))
    if raft.voters.ids != [settings.node_id]:
        options()  # wrong settings are reported at the start if they are sure to be used
    return LinkedPeers(sender, addresses, options, node.random, node.loop)


def quorum_link_options(node: NodeContext) -> LinkOptions:
    """Return the options of links to other controllers: those of all such links, with the times of the quorum."""
    settings = node.settings
    request_s = max(1, settings.number("controller.quorum.request.timeout.ms")) / 1000
    retry_s = settings.number("controller.quorum.retry.backoff.ms") / 1000
    return replace(
        controller_link_options(settings, node.random),
        connect_timeout_s=request_s,
        request_timeout_s=request_s,
        backoff=Backoff(min(retry_s, RECONNECT_S_MAX), RECONNECT_S_MAX),
    )


def configured_voters(settings: Settings) -> VoterSet:
    """Return the voters that apply as long as the log has none.

    These are controller.quorum.voters. Without them, a node that knows no other controllers is the only voter, and any other node
    has to learn the voters from the controllers that it knows.
    """
    if settings.quorum_voters:
        listener = controller_listener(settings)
        return VoterSet(
            Voter(ReplicaKey(node_id), (Endpoint(listener, *address),))
            for node_id, address in settings.quorum_voters.items()
        )
    return VoterSet.of_ids(settings.node_id) if settings.is_alone else VoterSet(())


def own_voter(settings: Settings, directory_id: Uuid, bound_ports: Mapping[str, int] = MappingProxyType({})) -> Voter:
    """Return this node as it describes itself to the quorum, with the ports of open listeners."""
    return Voter(
        ReplicaKey(settings.node_id, directory_id),
        tuple(
            Endpoint(one.name, one.host or settings.host_name, bound_ports.get(one.name, one.port))
            for one in settings.controller_listeners
        ),
        *SUPPORTED_FEATURES[KRAFT],
    )


def controller_listener(settings: Settings) -> str:
    """Return the listener by which controllers reach each other."""
    names = settings.texts("controller.listener.names") if settings.values["controller.listener.names"] else []
    return names[0].upper() if names else ""


def timeouts_of(settings: Settings) -> Timeouts:
    """Return the timeouts of raft; Kafka allows 0, which raft takes for 1 ms."""

    def ms(name: str) -> int:
        return max(1, settings.number(f"controller.quorum.{name}.ms"))

    return Timeouts(
        election_ms=ms("election.timeout"),
        election_backoff_ms_max=ms("election.backoff.max"),
        fetch_ms=ms("fetch.timeout"),
        request_ms=ms("request.timeout"),
        retry_ms=ms("retry.backoff"),
    )
