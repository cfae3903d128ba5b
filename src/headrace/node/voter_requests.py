"""Sends the requests by which a controller keeps its place among the voters up to date."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from headrace.base.errors import ErrorCode, HeadraceError
from headrace.broker.channels.controller_channel import ControllerChannel
from headrace.protocol.messages.add_raft_voter import AddRaftVoterRequest
from headrace.protocol.messages.remove_raft_voter import RemoveRaftVoterRequest
from headrace.quorum.voter_upkeep import VoterUpkeep
from headrace.raft.voters import Voter

log = logging.getLogger(__name__)

PERIOD_S = 1.0


async def keep_voter_current(upkeep: VoterUpkeep, own: Callable[[], Voter], channel: ControllerChannel) -> None:
    """Run until cancelled; a request that fails is sent again if it is still due."""
    last_problem = ""
    while True:
        await asyncio.sleep(PERIOD_S)
        request = upkeep.next_request(own())
        if request is None:
            continue
        try:
            response: Any = await channel.request(request)
            code = ErrorCode(response.error_code)
            problem = (
                ""
                if code is ErrorCode.NONE
                else f"{code.name} {getattr(response, 'error_message', None) or ''}".strip()
            )
        except (OSError, HeadraceError) as error:
            problem = str(error)
        if not problem:
            upkeep.succeeded(request)
            _report(request)
        elif problem != last_problem:
            log.info("%s was refused: %s; trying again", type(request).__name__.removesuffix("Request"), problem)
        last_problem = problem


def _report(request: object) -> None:
    match request:
        case AddRaftVoterRequest():
            log.info("this controller, %d, joins the voters of the metadata quorum", request.voter_id)
        case RemoveRaftVoterRequest():
            log.info("the voter that this controller, %d, was with its former disk is removed", request.voter_id)
