"""Signals over every transport, against a control plane with every known misbehaviour."""

import json

import programs
import pytest
from heat_config import transport
from stub_server import Reply


@pytest.fixture
def keystone(heat):
    """Make *heat* also a Keystone v3, Heat API and Zaqar v2, which check their requests."""

    def answer(status, document=None, **headers):
        body = b"" if document is None else json.dumps(document).encode()
        return Reply(status, body, headers)

    def reply(request):
        path = request.path
        if path == "/identity/v3/auth/tokens":
            auth = request.json["auth"]
            user = auth["identity"]["password"]["user"]
            if auth["identity"]["methods"] != ["password"] or user["password"] != "s3cret":
                return answer(401)
            assert user["id"] == "user-1"
            assert auth["scope"] == {"project": {"id": "project-1"}}
            catalog = [
                {"type": "compute", "endpoints": []},
                {
                    "type": "orchestration",
                    "endpoints": [
                        {"interface": "internal", "region_id": "two", "url": "http://no/"},
                        {"interface": "public", "region_id": "one", "url": "http://no/"},
                        {
                            "interface": "public",
                            "region_id": "two",
                            "url": heat.url + "/v1/project-1/",
                        },
                    ],
                },
                {
                    "type": "messaging",
                    "endpoints": [{"interface": "public", "region_id": "two", "url": heat.url}],
                },
            ]
            return answer(201, {"token": {"catalog": catalog}}, **{"X-Subject-Token": "token-1"})
        if request.headers.get("X-Auth-Token") != "token-1":
            return answer(401)
        if path == "/v1/project-1/stacks/st%20ack/uuid/resources/re%2Fs/signal":
            return answer(200)
        if path == "/v2/queues/queue%201/messages":
            assert request.headers["X-Project-Id"] == "project-1"
            assert len(request.headers["Client-ID"]) == 36
            (message,) = request.json["messages"]
            assert message["ttl"] > 0
            return answer(201, {"resources": ["/v2/queues/q/messages/1"]})
        return answer(404)

    heat.reply = reply
    return {
        "deploy_signal_transport": "HEAT_SIGNAL",
        "deploy_auth_url": heat.url + "/identity/v3",
        "deploy_user_id": "user-1",
        "deploy_username": "user",
        "deploy_password": "s3cret",
        "deploy_project_id": "project-1",
        "deploy_region_name": "two",
        "deploy_stack_id": "st%20ack/uuid",
        "deploy_resource_name": "re/s",
    }


def test_cfn_signal_keeps_the_signed_url_and_sends_json(guest, heat, cfn):
    deployment = cfn()
    guest.run(deployment)
    (request,) = heat.requests
    url = {i["name"]: i["value"] for i in deployment["inputs"]}["deploy_signal_id"]
    assert request.method == "POST"
    assert heat.url + request.path == url
    assert request.headers["Content-Type"] == "application/json"
    assert request.headers["Host"] == heat.url.partition("//")[2]
    assert request.body[:1] == b"{"


def test_temp_url_signal_is_put(guest, heat, cfn, replying):
    replying(201)
    assert guest.run(cfn(verb="PUT")).status == 0
    assert heat.requests[0].method == "PUT"
    assert guest.state_of("d-1") == "signalled"


@pytest.mark.defect("N7")
@pytest.mark.parametrize("suffix", ["", "/", "-unversioned", "-v2"])
def test_heat_signal_is_sent_with_a_token(guest, heat, keystone, make_deployment, suffix):
    if suffix in ("-unversioned", "-v2"):
        keystone["deploy_auth_url"] = heat.url + "/identity" + {"-v2": "/v2.0"}.get(suffix, "")
    else:
        keystone["deploy_auth_url"] += suffix
    guest.metadata(make_deployment(group="shell", id="d-1", inputs=keystone, outputs=["r"]))
    assert guest.run().status == 0, guest.console.read_text()
    assert heat.requests[-1].json["r"] == "value"
    assert guest.state_of("d-1") == "signalled"
    assert b"s3cret" not in guest.text_everywhere()


@pytest.mark.defect("N3", "N4", "N7")
def test_zaqar_signal_is_posted_to_the_queue(guest, heat, keystone, make_deployment):
    keystone.update(deploy_signal_transport="ZAQAR_SIGNAL", deploy_queue_id="queue 1")
    guest.shell_hook("shell", "head -c 300000 /dev/zero | tr '\\0' a\n")
    guest.metadata(make_deployment(group="shell", id="d-1", inputs=keystone))
    assert guest.run().status == 0, guest.console.read_text()
    request = heat.requests[-1]
    assert len(request.body) < 262_144
    body = request.json["messages"][0]["body"]
    assert "characters are left out here" in body["deploy_stdout"]


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"deploy_password": "wrong"}, "answered 401"),
        ({"deploy_region_name": "three"}, "no public endpoint"),
        ({"deploy_stack_id": None}, "no stack and resource"),
        ({"deploy_resource_name": "other"}, "answered 404"),
        ({"deploy_auth_url": "not a url"}, "not a URL"),
        ({"deploy_auth_url": "ftp://x/v3"}, "not a URL"),
    ],
)
def test_a_heat_signal_that_cannot_be_sent_is_explained(
    guest, keystone, make_deployment, change, part
):
    assert (
        guest.run(make_deployment(group="shell", id="d-1", inputs={**keystone, **change})).status
        == 0
    )
    assert guest.state_of("d-1") in ("finished", "undeliverable")
    assert part in guest.failures()[-1]
    assert b"wrong" not in guest.console.read_bytes()


def test_no_signal_sends_nothing(guest, heat, make_deployment):
    assert guest.run(make_deployment(group="shell", id="d-1")).status == 0
    assert heat.requests == []
    assert guest.state_of("d-1") == "signalled"


def test_missing_address_is_reported_once_and_does_not_fail_for_ever(guest, heat, make_deployment):
    inputs = {"deploy_signal_transport": "CFN_SIGNAL", "deploy_signal_id": None}
    guest.metadata(make_deployment(group="shell", id="d-1", inputs=inputs))
    for _ in range(3):
        assert guest.run().status == 0
    assert len(guest.failures()) == 1
    assert guest.state_of("d-1") == "undeliverable"
    inputs["deploy_signal_id"] = heat.url + "/late"
    assert guest.run(make_deployment(group="shell", id="d-1", inputs=inputs)).status == 0
    assert len(heat.requests) == 1
    assert guest.runs("d-1") == 1


def test_the_result_is_on_disk_before_it_is_signalled(guest, heat, cfn):

    seen = []

    def reply(request):
        seen.append((guest.state_of("d-1"), guest.result("d-1")["deploy_stdout"]))
        return Reply()

    heat.reply = reply
    guest.run(cfn())
    assert seen == [("finished", "out")]


def test_signal_of_a_gone_deployment_is_tried_until_it_is_forgotten(guest, heat, cfn, replying):
    replying(503)
    guest.run(cfn(), cfn(id="d-2", group="os-apply-config"))
    guest.run(cfn(id="d-2"))
    assert sum("resources/d-1" in r.path for r in heat.requests) > 3
    assert (guest.state / ".waiting").exists()
    guest.config.write_text("forget_after = 0\nsignal_time = 1\n")
    replying(200)
    heat.requests.clear()
    guest.run()
    assert sum("resources/d-1" in r.path for r in heat.requests) == 1
    assert not list(guest.state.glob("d-1*"))
    assert not (guest.state / ".waiting").exists()


def test_reordered_and_added_deployments_run_once_each(guest, heat, cfn):
    guest.run(cfn(id="b"))
    guest.run(cfn(id="a"), cfn(id="b"), cfn(id="c"))
    assert [guest.runs(key) for key in "abc"] == [1, 1, 1]


@pytest.mark.defect("N8")
@pytest.mark.tool("openssl")
def test_tls_is_verified_and_its_ca_can_be_named(guest, cfn, make_heat, secure):
    context, cert = secure("IP:127.0.0.1")
    server = make_heat(context)
    guest.run(cfn(server=server))
    assert "not trusted" in guest.failures()[0]
    assert server.requests == []
    guest.config.write_text("ca_file = /no/such/file\n")
    guest.run()
    assert "/no/such/file" in guest.failures()[1]
    guest.config.write_text(f"ca_file = {cert}\n")
    assert guest.run().status == 0
    assert len(server.requests) == 1


def test_own_notifier_program_sends_the_signal(guest, heat, cfn):
    program = programs.program(
        guest.root / "notify",
        'grep -q deploy_signal_id "$1" || exit 9\n'
        f"cat >{guest.root}/sent\necho the reason why >&2\ntest -e {guest.root}/accept",
    )
    guest.settings["HEAT_CONFIG_NOTIFY"] = str(program)
    guest.run(cfn())
    assert "ended with status 1" in guest.failures()[0]
    assert "the reason why\n" in guest.log("d-1")
    assert "the reason why" not in guest.console.read_text()
    (guest.root / "accept").touch()
    assert guest.run().status == 0
    assert json.loads((guest.root / "sent").read_text())["deploy_stdout"] == "out"
    assert heat.requests == []
    assert guest.runs("d-1") == 1
    guest.settings["HEAT_CONFIG_NOTIFY"] = "/no/such/program"
    guest.run(cfn(id="d-2"))
    assert guest.state_of("d-2") == "finished"
    assert "cannot be run: No such file" in guest.failures()[-1]
    program.write_text("#!/bin/sh\r\n")
    guest.settings["HEAT_CONFIG_NOTIFY"] = str(program)
    guest.run()
    assert r'cannot be run: the interpreter "/bin/sh\r" in its first line' in guest.failures()[-1]


@pytest.mark.parametrize(
    ("url", "signed"),
    [
        ("http://h/v1/signal/a?Timestamp=2026-11-25T06%3A20%3A07Z&Signature=b", 1795587607),
        ("http://h/v1/signal/a?Signature=b&timestamp=2000-02-29T23:59:59Z", 951868799),
        ("http://h/?Timestamp=1970-01-01T00%3a00%3a00Z#end", 0),
        ("http://h/?Timestamp=yesterday", None),
        ("http://h/?LastTimestamp=2026-11-25T06%3A20%3A07Z", None),
        ("http://h/?Timestamp=2026-11-25T06%3A20%3A07Zulu", None),
        ("http://h/", None),
    ],
)
def test_url_age_is_read_from_its_timestamp(monkeypatch, url, signed):
    """calendar.timegm gives the expected time; the agent does not load it."""
    monkeypatch.setattr(transport.time, "time", lambda: 2e9)
    assert transport.url_age(url) == (None if signed is None else 2e9 - signed)
