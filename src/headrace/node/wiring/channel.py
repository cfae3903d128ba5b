"""Builds a node's channel to the active controller."""

from __future__ import annotations

from functools import cache

from headrace.broker.channels.controller_channel import OwnController, QuorumChannel
from headrace.broker.channels.controller_discovery import ControllerDiscovery
from headrace.client.wire.node_link import NodeLink
from headrace.node.context import NodeContext
from headrace.node.wiring.link_options import controller_link_options


def make_controller_channel(context: NodeContext, own: OwnController | None) -> QuorumChannel:
    settings = context.settings
    voters = dict(settings.quorum_voters)
    if own is not None:
        voters.pop(settings.node_id, None)
    # A controller in the same process may never need links, so their options are checked only if other nodes are sure to be asked.
    options = cache(lambda: controller_link_options(settings, context.random))
    if own is None or voters:
        options()
    return QuorumChannel(
        settings.node_id,
        own,
        ControllerDiscovery(voters, settings.bootstrap_controllers),
        lambda address: NodeLink(address, options(), context.random),
        context.random,
    )
