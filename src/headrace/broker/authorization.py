"""ACLs and SCRAM credentials from the metadata: keeps the broker's authorizer up to date and looks up credentials."""

from __future__ import annotations

from headrace.metadata.acls import acl_of
from headrace.metadata.image import Image
from headrace.metadata.loader import Changes
from headrace.security.authorizer import StandardAuthorizer
from headrace.security.credentials import ScramCredential, ScramMechanism


class AclPublisher:
    def __init__(self, authorizer: StandardAuthorizer) -> None:
        self._authorizer = authorizer

    def publish(self, old: Image, new: Image, changes: Changes) -> None:
        for acl_id in changes.acls:
            record = new.acls.get(acl_id)
            self._authorizer.change(acl_id, None if record is None else acl_of(record))


def find_credential(image: Image, mechanism: ScramMechanism, user: str) -> ScramCredential | None:
    record = image.scram.get((user, mechanism))
    if record is None:
        return None
    return ScramCredential(record.salt, record.stored_key, record.server_key, record.iterations)
