"""Forwarding: the client's bytes go into the envelope, and the controller's bytes go back to the client."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headrace.api.permissions import NOTHING
from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.metrics import Metrics
from headrace.broker.channels.forwarding import Forwarding, decode_principal
from headrace.client.wire.frames import encode_request
from headrace.protocol.apis import ApiKey
from headrace.protocol.compiler import codec
from headrace.protocol.headers import response_header
from headrace.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from headrace.protocol.messages.envelope import EnvelopeRequest, EnvelopeResponse
from headrace.security.principals import Principal
from headrace.server.context import Peer, RequestContext
from headrace.server.dispatch import Dispatcher, Service
from headrace.server.frames import Deferred, EncodedResponse, ReceivedRequest
from headrace.server.response_writer import joined

VERSION, CORRELATION_ID = 7, 4711
# An unknown tagged field at the end, which a decoded request would lose.
FRAME = (
    b"".join(
        encode_request(
            CreateTopicsRequest(topics=[CreateTopicsRequest.CreatableTopic(name="t", num_partitions=2)]),
            VERSION,
            CORRELATION_ID,
            "client",
        )
    )[4:-1]
    + b"\x01\x63\x02xy"
)
CREATED = CreateTopicsResponse(topics=[CreateTopicsResponse.CreatableTopicResult(name="t", num_partitions=2)])
RESPONSE = response_header(ApiKey.CREATE_TOPICS, VERSION, CORRELATION_ID) + codec(CreateTopicsResponse, VERSION).encode(
    CREATED
)
PEER = Peer("PLAINTEXT", "192.0.2.7", principal=Principal("User", "alice"))


class Channel:
    """A channel to a controller that responds to every envelope with the same message."""

    def __init__(self, response: EnvelopeResponse) -> None:
        self.response = response
        self.envelopes: list[EnvelopeRequest] = []

    async def request(self, message: EnvelopeRequest) -> EnvelopeResponse:
        self.envelopes.append(message)
        return self.response


def dispatch(channel: Channel) -> bytes:
    """Dispatch the frame to a handler that forwards it, and return the response frame."""
    forwarding = Forwarding(channel)
    created: list[CreateTopicsResponse] = []

    async def handle(
        context: RequestContext, received: ReceivedRequest[CreateTopicsRequest]
    ) -> EncodedResponse[CreateTopicsResponse]:
        assert [topic.name for topic in received.message.topics] == ["t"]
        response = await forwarding.forward(context, received)
        created.append(response.decode())
        return response

    async def run() -> bytes:
        table = {
            ApiKey.CREATE_TOPICS: Service(ApiKey.CREATE_TOPICS, (2, 7), handle, NOTHING, keeps_frame=True),
        }
        dispatcher = Dispatcher(table, lambda version: b"", Metrics(), asyncio.get_running_loop())
        memory = bytearray(FRAME)
        deferred: Any = dispatcher.handle(PEER, memoryview(memory))
        memory[:] = bytes(len(memory))  # the connection reuses the memory of the frame once `handle` has returned
        assert isinstance(deferred, Deferred)
        response = await deferred.wait()
        assert response is not None
        return joined(response)

    frame = asyncio.run(run())
    assert created == [CREATED]
    return frame


def test_the_bytes_of_request_and_response_are_passed_on_unchanged() -> None:
    channel = Channel(EnvelopeResponse(response_data=RESPONSE))
    assert dispatch(channel) == len(RESPONSE).to_bytes(4, "big") + RESPONSE
    (envelope,) = channel.envelopes
    assert envelope.request_data == FRAME
    assert decode_principal(envelope.request_principal or b"") == PEER.principal
    assert envelope.client_host_address == bytes([192, 0, 2, 7])


def test_a_refused_envelope_raises_the_controllers_error() -> None:
    context = RequestContext(PEER, ApiKey.CREATE_TOPICS, VERSION, "client")
    refused = EnvelopeResponse(error_code=ErrorCode.NOT_CONTROLLER)
    with pytest.raises(KafkaError) as raised:
        asyncio.run(Forwarding(Channel(refused)).forward(context, ReceivedRequest(CreateTopicsRequest(), FRAME)))
    assert raised.value.code is ErrorCode.NOT_CONTROLLER
