"""A cloud's refusals: one sentence each, and the right outcome."""

from __future__ import annotations

import copy

import pytest
import yaml
from cases import GOOD, ends, written
from heat.common import exception as heat_exception
from neutronclient.common import exceptions as neutron_exceptions
from neutronclient.neutron import v2_0 as neutron_words

from hotplate.cloud.http import limits
from hotplate.cloud.neutron import quotas
from hotplate.elsewhere.refusals import REFUSALS, refusal
from hotplate.errors import Outcome

pytestmark = pytest.mark.slow

WORDS = {
    "Forbidden: resources.server: Quota exceeded for instances: Requested 1, but already used 10 "
    "of 10 instances (HTTP 403)": (Outcome.HOST, "Quota exceeded for instances"),
    "Conflict: resources.net: Quota exceeded for resources: ['network'].": (
        Outcome.HOST,
        "Quota exceeded for resources",
    ),
    "You have reached the maximum stacks per tenant, 100. Please delete some stacks.": (
        Outcome.HOST,
        "maximum stacks per tenant, 100",
    ),
    'ResourceInError: resources.server: Went to status ERROR due to "Message: No valid host was '
    'found. There are not enough hosts available., Code: 500"': (Outcome.HOST, "has no room"),
    "Flavor's disk is too small for requested image. Flavor disk is 1073741824 bytes, image is "
    "2147483648 bytes. (HTTP 400)": (Outcome.FAILED, "too small"),
    # Nova's fault in Heat's words, Zed.
    "aborted: Flavor's disk is too small for requested image. Flavor disk is 1073741824 bytes, "
    'image is 3221225472 bytes., Code: 500"': (Outcome.FAILED, "image is 3221225472 bytes."),
    "Multiple possible networks found, use a Network ID to be more specific. (HTTP 409)": (
        Outcome.FAILED,
        "names no network",
    ),
    str(heat_exception.EntityNotFound(entity="Flavor", name="m9")): (
        Outcome.FAILED,
        'names the flavor "m9"',
    ),
    str(heat_exception.EntityNotFound(entity="Key", name="mine")): (
        Outcome.FAILED,
        'names the keypair "mine"',
    ),
    "Error validating value 'lan': Unable to find network with name or id 'lan'": (
        Outcome.FAILED,
        'names the network "lan"',
    ),
    # Heat 19 with novaclient 18 (Debian 12), recorded.
    "No Flavor matching {'name': 'm1.nosuch'}. (HTTP 404)": (
        Outcome.FAILED,
        'names the flavor "m1.nosuch"',
    ),
    "No Network found for lan": (Outcome.FAILED, 'names the network "lan"'),
}


@pytest.mark.parametrize("words", WORDS)
def test_service_message_has_an_outcome(words):
    outcome, part = WORDS[words]
    error = refusal("ours", words)
    assert error is not None
    assert (error.outcome, part in error.message) == (outcome, True), error.message
    assert "ours" in error.message


def test_unknown_message_is_no_refusal():
    text = "deploy_status_code: Deployment exited with non-zero status code: 3"
    assert refusal("ours", text) is None
    assert all(each.hint for each in REFUSALS)


def test_message_of_neutronclient_is_recognised(cloud):
    """Heat looks for a network by the client's own look-up."""
    from neutronclient.v2_0 import client
    from test_clients import owner_session

    neutron = client.Client(session=owner_session(cloud.testbed.cloud))
    with pytest.raises(neutron_exceptions.NotFound) as raised:
        neutron_words.find_resourceid_by_name_or_id(neutron, "network", "nowhere")
    error = refusal("ours", str(raised.value))
    assert error is not None
    assert 'the network "nowhere"' in error.message


def test_unknown_cloud_is_a_usage_error(cloud):
    done = cloud.try_it(cloud="nowhere")
    ends(done, 2, 'there is no cloud "nowhere" in clouds.yaml; it has hotplate')


def test_empty_file_of_clouds_is_a_usage_error(cloud):
    path = cloud.folder / "clouds.yaml"
    before = path.read_text()
    path.write_text("")
    done = cloud.try_it(cloud="nowhere")
    path.write_text(before)
    ends(done, 2, '"nowhere" in clouds.yaml; there is none, or it is empty')


@pytest.fixture
def second(cloud):
    """Another cloud of ``clouds.yaml``, which a test makes of the first."""
    path = cloud.folder / "clouds.yaml"
    before = path.read_text()

    def make(*, more: dict[str, object] | None = None, **auth: str) -> None:
        clouds = yaml.safe_load(before)
        clouds["clouds"]["second"] = copy.deepcopy(clouds["clouds"]["hotplate"]) | (more or {})
        clouds["clouds"]["second"]["auth"].update(auth)
        path.write_text(yaml.safe_dump(clouds))

    yield make
    path.write_text(before)


def test_refused_credentials_are_a_usage_error(cloud, second):
    second(password="wrong-4711")
    done = cloud.try_it(cloud="second")
    ends(done, 2, 'the cloud "second" refuses the credentials of clouds.yaml')
    assert "4711" not in done.stdout + done.stderr


def test_unreachable_cloud_is_a_host_error(cloud, second):
    second(auth_url="http://127.0.0.1:9/v3")
    done = cloud.try_it(cloud="second")
    ends(done, 3, 'the cloud "second" cannot be reached at "http://127.0.0.1:9/v3"')


def test_clients_write_no_log_on_the_terminal(cloud, second):
    """keystoneauth warns "Failed to discover available identity versions ..." before it raises."""
    second(auth_url="http://127.0.0.1:9/v3")
    # A process of its own: pytest has handlers for all loggers.
    process = cloud.start("played.raw", "-t", written(cloud.folder), cloud="second")
    out, err = process.communicate(timeout=120)
    assert process.returncode == 3, out
    assert "Failed to discover" not in err


@pytest.mark.parametrize("key", ["cacert", "cert"])
def test_missing_file_of_tls_is_a_usage_error(cloud, second, key):
    """requests: OSError, "Could not find a suitable TLS CA certificate bundle, invalid path"."""
    second(more={key: "/nowhere/ca.pem"})
    ends(cloud.try_it(cloud="second"), 2, 'names the file "/nowhere/ca.pem", which does not exist')


def test_refused_image_fails(cloud):
    with cloud.testbed.cloud.fault(endpoint="glance", kind="status", status=400, method="PUT"):
        ends(cloud.try_it(), 1, 'Glance of the cloud "hotplate" refuses "')


def test_image_without_room_is_a_host_error(cloud, monkeypatch):
    monkeypatch.setattr(limits, "IMAGES_STORED", 1000)
    ends(cloud.try_it(), 3, 'the cloud "hotplate" has no room for the image')


def test_missing_image_is_a_usage_error(cloud):
    done = cloud.run("--os-image", "nothing", "-t", written(cloud.folder))
    ends(done, 2, 'the cloud "hotplate" has no image "nothing"')


def test_missing_right_is_a_usage_error(cloud):
    with cloud.testbed.cloud.fault(endpoint="nova", kind="status", status=403, method="POST"):
        ends(cloud.try_it(), 2, "has no right to a key pair")


def test_used_up_quota_is_a_host_error(cloud, monkeypatch):
    monkeypatch.setitem(quotas.DEFAULTS, "network", 0)
    template = written(cloud.folder, resources={"net": {"type": "OS::Neutron::Net"}})
    sentence = 'the quota of the project in the cloud "hotplate" is used up'
    ends(cloud.try_it("-t", template), 3, sentence)


def test_missing_flavor_fails(cloud, monkeypatch):
    """The embedded Nova has every flavor; here it answers as other clouds do."""
    from heat.engine.clients.os.nova import NovaClientPlugin

    def missing(_self: object, name: str) -> str:
        raise heat_exception.EntityNotFound(entity="Flavor", name=name)

    cloud.roles["web"] = GOOD
    monkeypatch.setattr(NovaClientPlugin, "find_flavor_by_name_or_id", missing)
    sentence = 'the template names the flavor "m1.small", and the cloud "hotplate" has none'
    ends(cloud.try_it(), 1, sentence)


def test_application_credential_that_heat_cannot_use_is_a_usage_error(cloud, monkeypatch):
    """Heat 19 answers 500 "Internal Error"; its log: "Delegated tokens cannot manage trusts"."""
    from openstack.config import cloud_region

    opened = cloud_region.CloudRegion.get_session

    def disguised(region):
        made = opened(region)
        # After the login, since the embedded Keystone has no application credentials.
        region.config["auth_type"] = "v3applicationcredential"
        return made

    monkeypatch.setattr(cloud_region.CloudRegion, "get_session", disguised)
    with cloud.testbed.cloud.fault(endpoint="heat", kind="status", status=500, method="POST"):
        done = ends(cloud.try_it(), 2, "which Keystone refuses to application credentials")
    assert "a user's password in clouds.yaml" in done.stderr


def test_template_refused_by_heat_fails(cloud):
    path = written(cloud.folder, resources={"more": {"type": "OS::Nowhere::Thing"}})
    ends(cloud.try_it("-t", path), 1, 'FAILED: Heat refused "')


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--memory", "512"), "--memory is for machines of this host"),
        (("--network-data", "n.json"), "--network-data is for machines of this host"),
        (("--os-image", "played"), "--os-image names the image that is tested"),
        (("--ssh-config", "nowhere"), 'the file "nowhere" does not exist'),
        (("--clean",), "--clean tests nothing"),
    ],
)
def test_conflicting_options_are_refused(cloud, words, sentence):
    done = cloud.run("played.raw", *words)
    assert (done.returncode, sentence in done.stderr) == (2, True), done.stderr
