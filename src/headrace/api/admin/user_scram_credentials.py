"""DescribeUserScramCredentials 0 and AlterUserScramCredentials 0. Secrets are never returned."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from headrace.api.admin.acls import Decide
from headrace.api.error_responses import code_of
from headrace.api.permissions import ALTER_CLUSTER, ALTER_CLUSTER_FORWARDED, DESCRIBE_CLUSTER
from headrace.base.errors import ErrorCode, HeadraceError
from headrace.broker.channels.forwarding import Forwarding
from headrace.broker.topic_creation import TopicCreation
from headrace.metadata.image import Image
from headrace.protocol.apis import ApiKey
from headrace.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
)
from headrace.protocol.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
)
from headrace.protocol.messages.stored.metadata_security import UserScramCredentialRecord
from headrace.server.context import RequestContext
from headrace.server.dispatch import Service
from headrace.server.frames import EncodedResponse, ReceivedRequest

Records = Callable[[], Mapping[tuple[str, int], UserScramCredentialRecord]]
Described = DescribeUserScramCredentialsResponse.DescribeUserScramCredentialsResult
Info = DescribeUserScramCredentialsResponse.CredentialInfo


class ScramApi:
    """SCRAM requests on a broker, which forwards changes to the controller."""

    def __init__(self, records: Records, forwarding: Forwarding, creation: TopicCreation) -> None:
        self._records = records
        self._forwarding = forwarding
        self._creation = creation

    def services(self) -> list[Service]:
        return [
            Service(
                ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, (0, 0), self.describe, DESCRIBE_CLUSTER, refuse_description
            ),
            Service(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, (0, 0), self.alter, ALTER_CLUSTER_FORWARDED, keeps_frame=True),
        ]

    def describe(
        self, context: RequestContext, request: DescribeUserScramCredentialsRequest
    ) -> DescribeUserScramCredentialsResponse:
        return describe_users(self._records(), request)

    async def alter(
        self, context: RequestContext, received: ReceivedRequest[AlterUserScramCredentialsRequest]
    ) -> AlterUserScramCredentialsResponse | EncodedResponse[AlterUserScramCredentialsResponse]:
        request = received.message
        response: EncodedResponse[AlterUserScramCredentialsResponse]
        try:
            response = await self._forwarding.forward(context, received)
        except (OSError, HeadraceError) as error:
            return refuse_alteration(request, code_of(error), str(error))
        done = {result.user for result in response.decode().results if result.error_code == ErrorCode.NONE}

        def seen(image: Image) -> bool:
            return all(
                (known := image.scram.get((change.name, change.mechanism))) is not None and known.salt == change.salt
                for change in request.upsertions
                if change.name in done
            ) and not any(
                (change.name, change.mechanism) in image.scram for change in request.deletions if change.name in done
            )

        await self._creation.wait_until(seen)
        return response


class ControllerScramApi:
    """SCRAM requests on a controller, which decides on changes."""

    def __init__(self, records: Records, decide: Decide) -> None:
        self._records = records
        self._decide = decide

    def services(self) -> list[Service]:
        return [
            Service(
                ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, (0, 0), self.describe, DESCRIBE_CLUSTER, refuse_description
            ),
            Service(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, (0, 0), self.alter, ALTER_CLUSTER, refuse_alteration),
        ]

    def describe(
        self, context: RequestContext, request: DescribeUserScramCredentialsRequest
    ) -> DescribeUserScramCredentialsResponse:
        return describe_users(self._records(), request)

    async def alter(self, context: RequestContext, request: AlterUserScramCredentialsRequest) -> Any:
        return await self._decide(request, lambda code, text: refuse_alteration(request, code, text))


def describe_users(
    records: Mapping[tuple[str, int], UserScramCredentialRecord], request: DescribeUserScramCredentialsRequest
) -> DescribeUserScramCredentialsResponse:
    infos: dict[str, list[Info]] = {}
    for (user, mechanism), record in sorted(records.items()):
        infos.setdefault(user, []).append(Info(mechanism=mechanism, iterations=record.iterations))
    times = Counter(user.name for user in request.users or []) or Counter(infos.keys())
    results = []
    for user, count in times.items():
        if count > 1:
            text = f"Cannot describe SCRAM credentials for the same user twice in a single request: {user}"
            results.append(Described(user=user, error_code=ErrorCode.DUPLICATE_RESOURCE, error_message=text))
        elif user not in infos:
            text = f"Attempt to describe a user credential that does not exist: {user}"
            results.append(Described(user=user, error_code=ErrorCode.RESOURCE_NOT_FOUND, error_message=text))
        else:
            results.append(Described(user=user, credential_infos=infos[user]))
    return DescribeUserScramCredentialsResponse(results=results)


def refuse_description(
    request: DescribeUserScramCredentialsRequest, code: ErrorCode, text: str
) -> DescribeUserScramCredentialsResponse:
    """Return the error at the top level and for each requested user, as Kafka does."""
    return DescribeUserScramCredentialsResponse(
        error_code=code,
        error_message=text,
        results=[Described(user=user.name, error_code=code, error_message=text) for user in request.users or []],
    )


def refuse_alteration(
    request: AlterUserScramCredentialsRequest, code: ErrorCode, text: str
) -> AlterUserScramCredentialsResponse:
    users = dict.fromkeys(
        [change.name for change in request.deletions] + [change.name for change in request.upsertions]
    )
    result = AlterUserScramCredentialsResponse.AlterUserScramCredentialsResult
    return AlterUserScramCredentialsResponse(
        results=[result(user=user, error_code=code, error_message=text) for user in users]
    )
