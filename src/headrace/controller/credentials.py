"""AlterUserScramCredentials: each user at most once per request; only keys derived from the password are written."""

from __future__ import annotations

from typing import Any

from headrace.base.errors import ErrorCode, KafkaError
from headrace.controller.context import ControllerContext, Tx
from headrace.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
)
from headrace.protocol.messages.stored.metadata_security import (
    RemoveUserScramCredentialRecord,
    UserScramCredentialRecord,
)
from headrace.security.credentials import check_iterations, check_user, credential_from_salted

BYTES_PER_REQUEST_MAX = 1 << 20  # size of names and salts; keeps the records in one batch of the metadata log

Upsertion = AlterUserScramCredentialsRequest.ScramCredentialUpsertion
Deletion = AlterUserScramCredentialsRequest.ScramCredentialDeletion
Result = AlterUserScramCredentialsResponse.AlterUserScramCredentialsResult


def alter(context: ControllerContext, request: AlterUserScramCredentialsRequest, now_ms: int, tx: Tx) -> None:
    changes: list[Upsertion | Deletion] = [*request.deletions, *request.upsertions]
    size = sum(len(change.name) for change in changes) + sum(len(upsertion.salt) for upsertion in request.upsertions)
    if size > BYTES_PER_REQUEST_MAX:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"more than {BYTES_PER_REQUEST_MAX} bytes of credentials in one request"
        )
    records: dict[str, Any] = {}
    errors: dict[str, KafkaError] = {}
    for change in changes:
        name = change.name
        if name in errors:
            continue
        try:
            if records.pop(name, None) is not None:
                raise KafkaError(
                    ErrorCode.DUPLICATE_RESOURCE, "A user credential cannot be altered twice in the same request"
                )
            records[name] = _set(change) if isinstance(change, Upsertion) else _remove(context, change)
        except KafkaError as error:
            errors[name] = error
    for record in records.values():
        tx.emit(record)
    results = [Result(user=name, error_message=None) for name in records]
    results += [Result(user=name, error_code=error.code, error_message=error.message) for name, error in errors.items()]
    tx.reply(tx.ticket, AlterUserScramCredentialsResponse(results=results))


def _set(change: Upsertion) -> UserScramCredentialRecord:
    mechanism = check_user(change.name, change.mechanism)
    check_iterations(change.iterations)
    credential = credential_from_salted(mechanism, change.salted_password, change.salt, change.iterations)
    return UserScramCredentialRecord(
        name=change.name,
        mechanism=mechanism,
        salt=credential.salt,
        stored_key=credential.stored_key,
        server_key=credential.server_key,
        iterations=credential.iterations,
    )


def _remove(context: ControllerContext, change: Deletion) -> RemoveUserScramCredentialRecord:
    mechanism = check_user(change.name, change.mechanism)
    if (change.name, mechanism) not in context.state.scram:
        raise KafkaError(ErrorCode.RESOURCE_NOT_FOUND, "Attempt to delete a user credential that does not exist")
    return RemoveUserScramCredentialRecord(name=change.name, mechanism=mechanism)
