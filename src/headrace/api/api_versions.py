"""ApiVersions 0–4: the APIs of this listener with their supported versions, and the features of the cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from headrace.api.permissions import NOTHING
from headrace.base.errors import ErrorCode
from headrace.metadata.image import Image
from headrace.metadata.state import KRAFT_VERSION
from headrace.protocol.apis import ApiKey
from headrace.protocol.compiler import codec
from headrace.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from headrace.server.context import RequestContext
from headrace.server.dispatch import Service

FEATURES_FROM_ZERO_VERSION_MIN = 4  # older clients fail on a feature whose range starts at 0 (KAFKA-17011)
# Without Produce 0, librdkafka assumes that a broker does not know the modern record format (KAFKA-18659). 0–2 are still refused.
ADVERTISED_MIN = {ApiKey.PRODUCE: 0}
_SOFTWARE_MAX = 200


class ApiVersionsApi:
    """The handler of ApiVersions. `services` returns the table of the listener's APIs."""

    def __init__(
        self,
        services: Callable[[], Mapping[ApiKey, Service]],
        image: Callable[[], Image],
        features: Mapping[str, tuple[int, int]],
        kraft_version: Callable[[], int],
    ) -> None:
        self._services = services
        self._image = image
        self._features = features
        self._kraft_version = kraft_version

    def services(self) -> list[Service]:
        return [Service(ApiKey.API_VERSIONS, (0, 4), self.handle, NOTHING)]

    def handle(self, context: RequestContext, request: ApiVersionsRequest) -> ApiVersionsResponse:
        if context.api_version >= 3:
            if not _is_software_name(request.client_software_name) or not _is_software_name(
                request.client_software_version
            ):
                return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
            context.peer.client_software = f"{request.client_software_name} {request.client_software_version}"
        image = self._image()
        return ApiVersionsResponse(
            api_keys=self._keys(),
            supported_features=[
                ApiVersionsResponse.SupportedFeatureKey(name=name, min_version=low, max_version=high)
                for name, (low, high) in sorted(self._features.items())
                if low > 0 or context.api_version >= FEATURES_FROM_ZERO_VERSION_MIN
            ],
            finalized_features_epoch=image.offset,
            finalized_features=[
                ApiVersionsResponse.FinalizedFeatureKey(name=name, min_version_level=level, max_version_level=level)
                for name, level in sorted({**image.features, KRAFT_VERSION: self._kraft_version()}.items())
                if level > 0
            ],
        )

    def unsupported(self, version: int) -> bytes:
        """Return the error in version 0, which every client can read, with the supported versions of ApiVersions."""
        response = ApiVersionsResponse(
            error_code=ErrorCode.UNSUPPORTED_VERSION,
            api_keys=[key for key in self._keys() if key.api_key == ApiKey.API_VERSIONS],
        )
        return codec(ApiVersionsResponse, 0).encode(response)

    def _keys(self) -> list[ApiVersionsResponse.ApiVersion]:
        return [
            ApiVersionsResponse.ApiVersion(
                api_key=key, min_version=ADVERTISED_MIN.get(key, service.versions[0]), max_version=service.versions[1]
            )
            for key, service in sorted(self._services().items())
            if service.is_listed is None or service.is_listed()
        ]


def _is_software_name(text: str) -> bool:
    """Return whether the text is letters, digits, dots and dashes (not at the ends): it goes into metrics and logs."""
    return (
        0 < len(text) <= _SOFTWARE_MAX
        and text[0].isalnum()
        and text[-1].isalnum()
        and all(character.isascii() and (character.isalnum() or character in ".-") for character in text)
    )
