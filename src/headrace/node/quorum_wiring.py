"""Builds this node's replica of the metadata log: raft, its files, and the links to the other controllers."""

from __future__ import annotations

from msgspec.structs import replace

from headrace.base.ids import NodeId
from headrace.client.retry import Backoff
from headrace.client.wire.node_link import Address, LinkOptions
from headrace.node.context import NodeContext
from headrace.node.link_options import controller_link_options
from headrace.node.settings import Settings
from headrace.quorum.driver import QuorumDriver, ReplicaFiles
from headrace.quorum.log_view import MetadataLogView
from headrace.quorum.opening import StoredMetadata
from headrace.quorum.peers import LinkedPeers, NoPeers
from headrace.quorum.requests import FETCH_WAIT_MS, Sender
from headrace.quorum.store import ElectionStore
from headrace.quorum.voter_records import VoterRecords, directory_of
from headrace.raft.election import Timeouts
from headrace.raft.node import RaftNode
from headrace.raft.voters import Endpoint, ReplicaKey, Voter, VoterSet
from headrace.storage.files import Files

RECONNECT_S_MAX = 0.3  # pause after failed attempts to connect: a voter that returns is found within this time


def make_driver(node: NodeContext, files: Files, directory: str, stored: StoredMetadata) -> QuorumDriver:
    settings = node.settings
    store = ElectionStore(files, directory, configured_voters(settings).ids, stored.voters.kraft_version)
    raft = RaftNode(
        ReplicaKey(settings.node_id, directory_of(stored.voters, settings.node_id)),
        stored.history(configured_voters(settings)),
        store.load(),
        MetadataLogView(stored.log, stored.snapshots),
        timeouts_of(settings),
        node.random,
    )
    raft.kraft_version = stored.voters.kraft_version
    return QuorumDriver(
        raft,
        ReplicaFiles(stored.log, stored.snapshots, store),
        _make_peers(node, raft),
        node.loop,
        stored.voters if stored.log.end_offset == 0 else VoterRecords(),
    )


def _make_peers(node: NodeContext, raft: RaftNode) -> LinkedPeers | NoPeers:
    settings = node.settings
    if raft.voters.ids == [settings.node_id]:
        return NoPeers()
    listener = settings.texts("controller.listener.names")[0].upper()
    times = timeouts_of(settings)
    fetch_wait_ms = min(FETCH_WAIT_MS, times.request_ms // 2, times.fetch_ms // 2)  # a held fetch must not time out

    def endpoints_of(node_id: NodeId) -> tuple[Endpoint, ...]:
        voter = raft.voters.get(node_id)
        return () if voter is None else voter.endpoints

    def address_of(node_id: NodeId) -> Address | None:
        endpoints = endpoints_of(node_id)
        found = next((one for one in endpoints if one.listener == listener), endpoints[0] if endpoints else None)
        return None if found is None else Address(found.host, found.port)

    def sender() -> Sender:
        return Sender(
            raft.key,
            node.cluster_id,
            endpoints_of(raft.key.id),
            settings.number("controller.quorum.fetch.max.bytes"),
            settings.number("controller.quorum.fetch.snapshot.max.bytes"),
            fetch_wait_ms,
        )

    return LinkedPeers(sender, address_of, quorum_link_options(node), node.random, node.loop)


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
    """Return the static voters; without controller.quorum.voters, this node alone."""
    if not settings.quorum_voters:
        return VoterSet.of_ids(settings.node_id)
    names = settings.texts("controller.listener.names") if settings.values["controller.listener.names"] else []
    listener = names[0].upper() if names else ""
    return VoterSet(
        Voter(ReplicaKey(node_id), (Endpoint(listener, *address),))
        for node_id, address in settings.quorum_voters.items()
    )


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
