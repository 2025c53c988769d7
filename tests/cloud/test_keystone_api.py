"""Keystone's API as an ordinary user of a cloud meets it, asked by the SDK and ``openstack``.

The policies are Keystone's own defaults (``keystone/common/policies``); the requests are those of
the clients, and of tempest's ``tempest.api.identity.v3``.
"""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta
from typing import Any

import openstack as sdk
import pytest
from keystoneauth1 import exceptions as ks_exceptions
from keystoneauth1 import session
from keystoneauth1.identity import v3
from keystoneclient.v3 import client as keystone_client
from openstack import exceptions as sdk_exceptions
from test_clients import ask, owner_session

NUMBERS = itertools.count(1)


@pytest.fixture(scope="module")
def identity(connection: Any) -> Any:
    return connection.identity


@pytest.fixture(scope="module")
def keystone(cloud: Any) -> Any:
    return keystone_client.Client(session=owner_session(cloud))


@pytest.fixture(scope="module")
def user(cloud: Any) -> str:
    return str(cloud.credentials.user_id)


@pytest.fixture
def credential(cloud: Any, identity: Any, user: str) -> Any:
    """Create an application credential with the rights of its owner."""
    made = identity.create_application_credential(user, name=f"robot-{next(NUMBERS)}")
    yield made
    identity.delete_application_credential(user, made.id)


def login_by(cloud: Any, credential: Any, **changes: Any) -> session.Session:
    fields = {
        "auth_url": cloud.endpoints["keystone"] + "/v3",
        "application_credential_id": credential.id,
        "application_credential_secret": credential.secret,
        **changes,
    }
    return session.Session(auth=v3.ApplicationCredential(**fields))


def test_user_sees_itself(cloud: Any, identity: Any, user: str, openstack: Any) -> None:
    shown = openstack("user", "show", user, "-f", "json")
    assert (shown["id"], shown["name"], shown["domain_id"]) == (user, "hotplate", "default")
    with pytest.raises(sdk_exceptions.ForbiddenException, match="identity:get_user"):
        identity.get_user("0" * 32)
    with pytest.raises(sdk_exceptions.ForbiddenException, match="identity:list_projects"):
        list(identity.projects())
    # After that refusal the command lists the user's own, but not yet in openstackclient 9.0.0,
    # which asks outside of its "try".
    (project,) = openstack("project", "list", "--my-projects", "-f", "json")
    assert project["Name"] == "hotplate"
    assert openstack("project", "show", project["ID"], "-f", "json")["domain_id"] == "default"
    groups = ask(cloud, "keystone", "GET", f"/v3/users/{user}/groups").json()
    assert (groups["groups"], groups["links"]["next"]) == ([], None)


def test_regions_and_own_domain_are_shown(openstack: Any) -> None:
    (region,) = openstack("region", "list", "-f", "json")
    assert region["Region"] == "RegionOne"
    assert openstack("region", "show", "RegionOne", "-f", "json")["region"] == "RegionOne"
    # tempest: DefaultDomainTestJSON.test_default_domain_exists
    domain = openstack("domain", "show", "default", "-f", "json")
    assert (domain["name"], domain["enabled"]) == ("Default", True)
    assert "Could not find region: Nowhere" in openstack("region", "show", "Nowhere", status=1)


@pytest.mark.parametrize(
    ("words", "rule"),
    [
        (("user", "list"), "list_users"),
        (("role", "list"), "list_roles"),
        (("role", "assignment", "list"), "list_role_assignments"),
        (("domain", "list"), "list_domains"),
        (("group", "list"), "list_groups"),
        (("service", "list"), "list_services"),
        (("endpoint", "list"), "list_"),
        (("user", "create", "eve"), "create_user"),
        (("project", "create", "other", "--domain", "default"), "create_project"),
        (("region", "create", "RegionTwo"), "create_region"),
    ],
)
def test_command_of_administrators_is_forbidden(
    openstack: Any, words: tuple[str, ...], rule: str
) -> None:
    said = openstack(*words, status=1)
    assert f"You are not authorized to perform the requested action: identity:{rule}" in said


def test_password_of_the_session_stays(cloud: Any, user: str) -> None:
    body = {"user": {"password": "new", "original_password": cloud.credentials.password}}
    answer = ask(cloud, "keystone", "POST", f"/v3/users/{user}/password", json=body)
    assert (answer.status_code, "clouds.yaml" in answer.text) == (403, True)
    owner_session(cloud).get_token()


def test_ec2_credentials(cloud: Any, keystone: Any, user: str, openstack: Any) -> None:
    """As tempest's EC2CredentialsTest; the key signs requests to Heat's CFN API."""
    made = openstack("ec2", "credentials", "create", "-f", "json")
    assert (made["user_id"], made["project_id"]) == (user, cloud.credentials.project_id)
    other = keystone.ec2.create(user, cloud.credentials.project_id)
    listed = {each["Access"] for each in openstack("ec2", "credentials", "list", "-f", "json")}
    assert {made["access"], other.access} <= listed
    assert keystone.ec2.get(user, other.access).secret == other.secret
    openstack("ec2", "credentials", "delete", made["access"], other.access)
    with pytest.raises(ks_exceptions.NotFound, match="Could not find credential"):
        keystone.ec2.get(user, other.access)
    with pytest.raises(ks_exceptions.NotFound, match="Could not find project"):
        keystone.ec2.create(user, "other")
    with pytest.raises(ks_exceptions.Forbidden, match="ec2_create_credential"):
        keystone.ec2.create("0" * 32, cloud.credentials.project_id)


def test_application_credential_logs_in(cloud: Any, user: str, openstack: Any) -> None:
    """As tempest's ApplicationCredentialsV3Test, by the command."""
    made = openstack("application", "credential", "create", "robot", "-f", "json")
    assert (made["Project ID"], made["Unrestricted"]) == (cloud.credentials.project_id, False)
    shown = openstack("application", "credential", "show", "robot", "-f", "json")
    assert (shown["ID"], shown.get("Secret")) == (made["ID"], None)
    fields = {"application_credential_secret": made["Secret"]}
    by_name = {"application_credential_id": None, "application_credential_name": "robot"}
    owner = {"username": "hotplate", "user_domain_id": "default"}
    changes: dict[str, Any]
    for changes in ({"application_credential_id": made["ID"]}, {**by_name, **owner}):
        login = session.Session(
            auth=v3.ApplicationCredential(
                auth_url=cloud.endpoints["keystone"] + "/v3", **fields, **changes
            )
        )
        assert login.get_project_id() == cloud.credentials.project_id
        assert login.get_user_id() == user
    url = f"{cloud.endpoints['nova']}/v2.1/servers"
    assert login.get(url).status_code == 200
    openstack("application", "credential", "delete", "robot")
    # Its tokens end with it.
    with pytest.raises(ks_exceptions.Unauthorized):
        login.get(url)


def test_application_credential_has_some_roles_and_ends(
    cloud: Any, identity: Any, user: str
) -> None:
    ends = datetime.now(UTC).replace(tzinfo=None) + timedelta(minutes=5)
    made = identity.create_application_credential(
        user, name="reads", roles=[{"name": "reader"}], expires_at=ends.isoformat()
    )
    assert made.expires_at == ends.isoformat()
    login = login_by(cloud, made)
    access = login.auth.get_access(login)  # type: ignore[union-attr]
    assert access.role_names == ["reader"]
    assert access.expires.replace(tzinfo=None) <= ends
    body: dict[str, Any] = {"server": {"name": "w", "imageRef": "i", "flavorRef": "m1.small"}}
    url = f"{cloud.endpoints['nova']}/v2.1/servers"
    assert login.post(url, json=body, raise_exc=False).status_code == 403
    # A new token by the old one has no more rights.
    body = {
        "auth": {
            "identity": {"methods": ["token"], "token": {"id": login.get_token()}},
            "scope": {"project": {"id": cloud.credentials.project_id}},
        }
    }
    answer = ask(cloud, "keystone", "POST", "/v3/auth/tokens", json=body).json()["token"]
    assert [each["name"] for each in answer["roles"]] == ["reader"]
    assert answer["application_credential"] == {
        "id": made.id,
        "name": "reads",
        "restricted": True,
    }
    identity.delete_application_credential(user, made.id)


@pytest.mark.parametrize(
    ("changes", "status", "words"),
    [
        ({"name": None}, 400, "'name' is a required property"),
        ({"name": 7}, 400, "field 'name'"),
        ({"roles": [{"name": "admin-of-all"}]}, 400, "unassigned role"),
        ({"roles": ["reader"]}, 400, "field 'roles'"),
        ({"expires_at": "2020-01-01T00:00:00"}, 400, "must not be before now"),
        ({"expires_at": "soon"}, 400, "Timestamp not in expected format"),
        ({"access_rules": [{"path": "/v2.1/servers"}]}, 400, "hotplate has no access rules"),
    ],
)
def test_bad_application_credential_is_refused(
    cloud: Any, user: str, changes: dict[str, Any], status: int, words: str
) -> None:
    body = {"application_credential": {"name": "bad", **changes}}
    path = f"/v3/users/{user}/application_credentials"
    answer = ask(cloud, "keystone", "POST", path, json=body)
    assert (answer.status_code, words in answer.json()["error"]["message"]) == (status, True)


def test_name_of_an_application_credential_is_unique(
    identity: Any, user: str, credential: Any
) -> None:
    with pytest.raises(sdk_exceptions.ConflictException, match="Duplicate entry"):
        identity.create_application_credential(user, name=credential.name)


def test_wrong_secret_and_a_scope_are_refused(cloud: Any, credential: Any) -> None:
    with pytest.raises(ks_exceptions.Unauthorized):
        login_by(cloud, credential, application_credential_secret="wrong").get_token()
    by = {"id": credential.id, "secret": credential.secret}
    body = {
        "auth": {
            "identity": {"methods": ["application_credential"], "application_credential": by},
            "scope": {"project": {"id": cloud.credentials.project_id}},
        }
    }
    answer = ask(cloud, "keystone", "POST", "/v3/auth/tokens", json=body)
    assert (answer.status_code, "cannot request a scope" in answer.text) == (401, True)


def test_program_manages_no_credentials_and_no_trusts(
    cloud: Any, identity: Any, user: str, credential: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Heat makes a trust for a stack, which Keystone refuses to delegates (LP#2150089)."""
    robot: Any = sdk.connection.Connection(session=login_by(cloud, credential))
    words = "Using method 'application_credential' is not allowed"
    with pytest.raises(sdk_exceptions.ForbiddenException, match=words):
        robot.identity.create_application_credential(user, name="more")
    keys = f"{cloud.endpoints['keystone']}/v3/users/{user}/credentials/OS-EC2"
    answer = robot.session.get(keys, raise_exc=False)
    assert (answer.status_code, "Delegated tokens cannot" in answer.text) == (403, True)
    free = identity.create_application_credential(user, name="free", unrestricted=True)
    program: Any = sdk.connection.Connection(session=login_by(cloud, free))
    more = program.identity.create_application_credential(user, name="more")
    program.identity.delete_application_credential(user, more.id)
    # As Heat 19 and 24 of Debian: the reason is in Heat's log only.
    template = {"heat_template_version": "2018-08-31", "resources": {}}
    with pytest.raises(sdk_exceptions.HttpException, match="Internal Server Error") as caught:
        program.orchestration.create_stack(name="by-program", template=template)
    assert caught.value.status_code == 500
    assert "Delegated tokens cannot manage trusts" in caplog.text
    identity.delete_application_credential(user, free.id)
