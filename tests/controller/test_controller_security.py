"""ACLs and SCRAM credentials as decisions: records, replies, and when the controller's authorizer sees them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from tests.fakes import FakeJournal

from headrace.base.errors import ErrorCode
from headrace.controller import acls, credentials
from headrace.controller.acls import AclFollower, committed_acls
from headrace.controller.context import ControllerContext
from headrace.controller.controller import Controller
from headrace.metadata.acls import acl_of
from headrace.protocol.declare import Struct
from headrace.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
)
from headrace.protocol.messages.create_acls import CreateAclsRequest, CreateAclsResponse
from headrace.protocol.messages.delete_acls import DeleteAclsRequest, DeleteAclsResponse
from headrace.protocol.messages.stored.metadata_security import (
    AccessControlEntryRecord,
    RemoveAccessControlEntryRecord,
    RemoveUserScramCredentialRecord,
    UserScramCredentialRecord,
)
from headrace.security.acls import Acl, Permission
from headrace.security.authorizer import StandardAuthorizer
from headrace.security.credentials import ScramMechanism, credential_from_salted, salted_password
from headrace.security.principals import Principal
from headrace.security.resources import Operation, Resource
from headrace.statemachine.runtime import Runtime

Creation = CreateAclsRequest.AclCreation
Filter = DeleteAclsRequest.DeleteAclsFilter
Upsertion = AlterUserScramCredentialsRequest.ScramCredentialUpsertion
Deletion = AlterUserScramCredentialsRequest.ScramCredentialDeletion
ALICE = Principal("User", "alice")
SALT = b"0123456789abcdef"


class SecurityHarness:
    def __init__(self, *, commits_immediately: bool = True) -> None:
        self.journal: FakeJournal[Struct] = FakeJournal(commits_on_append=commits_immediately)
        self.context = ControllerContext("cluster", random.Random(5))
        machine = Controller(self.context, [])
        self.runtime = Runtime(machine, self.journal)
        self.authorizer = StandardAuthorizer(frozenset(), allow_if_no_acl=False)
        follower = AclFollower(self.context, self.authorizer)
        machine.on_applied = follower.applied
        self.journal.on_committed(follower.committed)
        self.runtime.lead(0)

    def send_request(self, request: Struct) -> Any:
        responses: list[tuple[Any, Exception | None]] = []
        self.runtime.submit(request, 0, lambda answer, error: responses.append((answer, error)))
        if not responses:
            return None
        ((answer, error),) = responses
        if error is not None:
            raise error
        return answer

    def create(self, *creations: CreateAclsRequest.AclCreation) -> CreateAclsResponse | None:
        return self.send_request(CreateAclsRequest(creations=list(creations)))

    def delete(self, *filters: DeleteAclsRequest.DeleteAclsFilter) -> DeleteAclsResponse | None:
        return self.send_request(DeleteAclsRequest(filters=list(filters)))

    def alter(
        self,
        upsertions: Sequence[AlterUserScramCredentialsRequest.ScramCredentialUpsertion] = (),
        deletions: tuple[Any, ...] | list[AlterUserScramCredentialsRequest.ScramCredentialDeletion] = (),
    ) -> dict[str, ErrorCode | int]:
        request = AlterUserScramCredentialsRequest(upsertions=list(upsertions), deletions=list(deletions))
        return {result.user: result.error_code for result in self.send_request(request).results}

    def can_read(self, topic: str) -> bool:
        return self.authorizer.decide(ALICE, "::1", Operation.READ, Resource.TOPIC, topic).allowed


def creation(
    name: str = "orders", operation: Operation = Operation.READ, **changes: Any
) -> CreateAclsRequest.AclCreation:
    fields = {
        "resource_type": Resource.TOPIC, "resource_name": name, "principal": "User:alice", "host": "*",
        "operation": operation, "permission_type": Permission.ALLOW, **changes,
    }  # fmt: skip
    return Creation(**fields)


def acl_filter(**overrides: Any) -> DeleteAclsRequest.DeleteAclsFilter:
    fields = {
        "resource_type_filter": 1, "resource_name_filter": None, "pattern_type_filter": 1, "principal_filter": None,
        "host_filter": None, "operation": 1, "permission_type": 1, **overrides,
    }  # fmt: skip
    return Filter(**fields)


def test_duplicate_acls_are_created_once_and_each_gets_its_own_result() -> None:
    harness = SecurityHarness()
    answer = harness.create(creation(), creation(), creation(""), creation("other"))
    assert [result.error_code for result in answer.results] == [0, 0, ErrorCode.INVALID_REQUEST, 0]
    assert [type(record) for record in harness.journal.written] == [AccessControlEntryRecord] * 2
    assert acl_of(harness.journal.written[0]) == Acl(2, "orders", 3, "User:alice", "*", 3, 3)
    assert harness.journal.written[0].id != harness.journal.written[1].id
    harness.create(creation())
    assert len(harness.journal.written) == 2
    assert {record.resource_name for record in committed_acls(harness.context).values()} == {"orders", "other"}


def test_delete_filters_apply_to_the_same_acls_and_return_their_matches() -> None:
    harness = SecurityHarness()
    harness.create(creation("a"), creation("b"), creation("b", Operation.WRITE))
    answer = harness.delete(
        acl_filter(resource_name_filter="b"), acl_filter(operation=Operation.READ), acl_filter(operation=99)
    )
    assert [len(result.matching_acls) for result in answer.filter_results] == [2, 2, 0]
    assert [result.error_code for result in answer.filter_results] == [0, 0, ErrorCode.INVALID_REQUEST]
    removed = [record for record in harness.journal.written if isinstance(record, RemoveAccessControlEntryRecord)]
    assert len(removed) == 3 and not committed_acls(harness.context)
    assert harness.create(creation("a")).results[0].error_code == 0
    assert len(committed_acls(harness.context)) == 1, "what was removed can be created again"


def test_acl_requests_are_limited_in_changes_and_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acls, "CHANGES_PER_REQUEST_MAX", 2)
    harness = SecurityHarness()
    with pytest.raises(Exception, match="more than 2 ACLs"):
        harness.create(*(creation(str(number)) for number in range(3)))
    harness.create(creation("a"), creation("b"))
    harness.create(creation("c"))
    with pytest.raises(Exception, match="at most 2"):
        harness.delete(acl_filter())
    assert len(committed_acls(harness.context)) == 3
    monkeypatch.setattr(acls, "CHARACTERS_PER_REQUEST_MAX", 20)
    answer = harness.create(creation("d"), creation("e" * 50))
    assert [result.error_code for result in answer.results] == [0, ErrorCode.INVALID_REQUEST]


def test_the_authorizer_sees_acl_changes_only_after_they_are_committed() -> None:
    harness = SecurityHarness(commits_immediately=False)
    assert harness.create(creation()) is None
    assert harness.context.state.acls.items() and not harness.can_read("orders")
    harness.journal.commit()
    assert harness.can_read("orders")
    harness.delete(acl_filter())
    assert harness.can_read("orders")
    harness.journal.commit()
    assert not harness.can_read("orders")


def test_a_starting_controller_loads_committed_acls_into_its_authorizer() -> None:
    harness = SecurityHarness()
    harness.create(creation())
    authorizer = StandardAuthorizer(frozenset(), allow_if_no_acl=False)
    AclFollower(harness.context, authorizer).load()
    assert authorizer.decide(ALICE, "::1", Operation.READ, Resource.TOPIC, "orders").allowed


# --- SCRAM credentials


def upsertion(
    name: str,
    mechanism: ScramMechanism | int = ScramMechanism.SHA_256,
    iterations: int = 4096,
    password: str = "secret",
) -> AlterUserScramCredentialsRequest.ScramCredentialUpsertion:
    salted = salted_password(ScramMechanism.SHA_256, password, SALT, iterations)
    return Upsertion(name=name, mechanism=mechanism, iterations=iterations, salt=SALT, salted_password=salted)


def test_scram_credentials_are_stored_as_keys_without_the_salted_password() -> None:
    harness = SecurityHarness()
    change = upsertion("alice")
    assert harness.alter([change]) == {"alice": 0}
    (record,) = harness.journal.written
    assert isinstance(record, UserScramCredentialRecord)
    expected = credential_from_salted(ScramMechanism.SHA_256, change.salted_password, SALT, 4096)
    assert harness.context.find_credential(ScramMechanism.SHA_256, "alice") == expected
    assert change.salted_password not in (record.stored_key, record.server_key)
    assert harness.context.find_credential(ScramMechanism.SHA_512, "alice") is None


def test_each_user_in_a_scram_request_gets_its_own_error_code() -> None:
    harness = SecurityHarness()
    codes = harness.alter(
        [
            upsertion("good"), upsertion("few", iterations=4095), upsertion("many", iterations=16385), upsertion(""),
            upsertion("odd", mechanism=0), upsertion("twice"), upsertion("twice", mechanism=ScramMechanism.SHA_512),
        ],
        [Deletion(name="nobody", mechanism=1), Deletion(name="worse", mechanism=7)],
    )  # fmt: skip
    assert codes == {
        "good": 0,
        "few": ErrorCode.UNACCEPTABLE_CREDENTIAL,
        "many": ErrorCode.UNACCEPTABLE_CREDENTIAL,
        "": ErrorCode.UNACCEPTABLE_CREDENTIAL,
        "odd": ErrorCode.UNSUPPORTED_SASL_MECHANISM,
        "twice": ErrorCode.DUPLICATE_RESOURCE,
        "nobody": ErrorCode.RESOURCE_NOT_FOUND,
        "worse": ErrorCode.UNSUPPORTED_SASL_MECHANISM,
    }
    assert len(harness.journal.written) == 1


def test_a_deleted_scram_credential_can_be_created_again() -> None:
    harness = SecurityHarness()
    harness.alter([upsertion("alice")])
    assert harness.alter([], [Deletion(name="alice", mechanism=1)]) == {"alice": 0}
    assert isinstance(harness.journal.written[-1], RemoveUserScramCredentialRecord)
    assert harness.context.find_credential(ScramMechanism.SHA_256, "alice") is None
    assert harness.alter([upsertion("alice", password="new")]) == {"alice": 0}


def test_scram_requests_over_the_size_limit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credentials, "BYTES_PER_REQUEST_MAX", 30)
    harness = SecurityHarness()
    with pytest.raises(Exception, match="more than 30 bytes"):
        harness.alter([upsertion("a" * 20)])
