"""Our os-collect-config and the real one, 14.1, in the same scenarios.

Both run each scenario in the same directory, one after the other. Files, output and exit statuses
must be equal; intended differences are in docs/agent.rst and have their own tests.
"""

from __future__ import annotations

import itertools
import json

import pytest

from .conftest import PASSWORD, SECRET

UNGROUPED = {"id": "d2", "name": "web", "group": "Heat::Ungrouped", "config": {"port": 80}}
DEPLOYMENTS = [
    {"id": "d1", "name": "hook", "group": "script", "config": "#!/bin/sh\n"},
    UNGROUPED,
    {"id": "d3", "name": "db é", "group": "os-apply-config", "config": ["a", None, 1.5]},
    {"id": "d4", "name": "none", "config": "text"},
    {"id": "d5", "name": "null group", "group": None, "config": "text"},
]
DOCUMENT = {"deployments": DEPLOYMENTS, "os-collect-config": {"cfn": {"path": "x"}}, "ü": "\u2028"}
RECORD = (
    'env | grep -v "^_=\\|^SHLVL=\\|^PWD=" | sort >>$$RECORD/env;'
    " ls $$RECORD/cache >>$$RECORD/listing; cat $$RECORD/cache/os_config_files.json >>$$RECORD/env"
)


def in_turn(guest, play):
    """Run a scenario with the real program, then with ours; return both results."""
    results = []
    for which in ("real", "ours"):
        guest.begin()
        results.append(play(which))
    return results


def same(guest, play):
    """Assert that a scenario, which returns a list of Done, is equal for both; return ours."""
    theirs, ours = in_turn(guest, play)
    assert len(theirs) == len(ours)
    for expected, done in zip(theirs, ours, strict=True):
        assert done.status == expected.status, (expected.stderr, done.stderr)
        assert done.stdout == expected.stdout
        assert done.files.keys() == expected.files.keys()
        assert done.files == expected.files
        assert "Traceback" not in done.stderr
    return ours


def cfn_conf(cloud, *more):
    paths = "\n".join(f"path = {path}" for path in ("server.Metadata", *more))
    return (
        f"[cfn]\nmetadata_url = {cloud.url}/cfn/v1/\nstack_name = demo\naccess_key_id = ak\n"
        f"secret_access_key = {SECRET}\n{paths}\n"
    )


def heat_conf(cloud, auth="/keystone/v3", stack="demo/sid-1", section="heat", extra=""):
    place = f"stack_id = {stack}\nresource_name = server\n" if section == "heat" else ""
    queue = "queue_id = q1\n" if section == "zaqar" else ""
    return (
        f"[{section}]\nauth_url = {cloud.url}{auth}\nuser_id = u1\npassword = {PASSWORD}\n"
        f"project_id = p1\nregion_name = here\n{place}{queue}{extra}"
    )


def once(guest, text, *, collectors, command=RECORD, **defaults):
    """Make a scenario: two runs with a command, without a change between them."""

    def play(which):
        guest.conf(text, command, **defaults)
        env = {"RECORD": str(guest.root)}
        return [guest.run(which, "--one-time", *collectors, **env) for _ in range(2)]

    return play


def test_cfn_is_the_same(guest, cloud):
    cloud.documents["cfn:server"] = DOCUMENT
    cloud.documents["cfn:other"] = {"sub": {"a": 1, "deployments": [UNGROUPED]}, "x": 2}
    first, second = same(
        guest, once(guest, cfn_conf(cloud, "other.Metadata.sub"), collectors=["cfn"])
    )
    assert json.loads(first.files["cache/os_config_files.json"][1]) == [
        f"{guest.root}/cache/{name}.json" for name in ("cfn", "web")
    ]
    assert first.files["cache/cfn.json"][0] == 0o600
    assert second.files["env"] == first.files["env"]  # the command did not run again


def test_cfn_of_one_path_has_all_deployments(guest, cloud):
    cloud.documents["cfn:server"] = DOCUMENT
    (first, _) = same(guest, once(guest, cfn_conf(cloud), collectors=["cfn"]))
    assert {"cache/web.json", "cache/db é.json", "cache/none.json"} < first.files.keys()


def test_request_of_cfn_is_the_same(guest, cloud):
    cloud.documents["cfn:server"] = {}
    in_turn(guest, once(guest, cfn_conf(cloud), collectors=["cfn"]))
    real, ours = cloud.requests[0], cloud.requests[2]
    assert ours.path == real.path
    assert ours.headers["Content-Type"] == real.headers["Content-Type"]


def test_cfn_with_the_hint_of_the_boot_is_the_same(guest, cloud):
    cloud.documents["cfn:server"] = DOCUMENT

    def play(which):
        hint = guest.write("hint", f" {cloud.url}/cfn\n")
        text = cfn_conf(cloud).replace("metadata_url", "ignored")
        guest.conf(f"{text}heat_metadata_hint = {hint}\n", "true")
        return [guest.run(which, "--one-time", "cfn")]

    same(guest, play)
    assert cloud.requests[1].path.startswith("/cfn/v1/?")


@pytest.mark.parametrize(
    ("auth", "stack"),
    [
        ("/keystone/v3", "demo/sid-1"),
        ("/keystone/v3/", "demo/sid-1"),
        ("/keystone/v2.0", "sid-1"),
        ("/keystone/", "sid-1"),
    ],
)
def test_heat_is_the_same(guest, cloud, auth, stack):
    cloud.documents["heat"] = DOCUMENT
    same(guest, once(guest, heat_conf(cloud, auth, stack), collectors=["heat"]))


def test_zaqar_is_the_same(guest, cloud):
    def play(which):
        runs = []
        for message in ({"first": 1, "deployments": DEPLOYMENTS}, {"second": 2}):
            cloud.queue[:] = [message]
            guest.conf(heat_conf(cloud, section="zaqar"), RECORD)
            runs.append(guest.run(which, "--one-time", "zaqar", RECORD=str(guest.root)))
        return runs

    same(guest, play)


def cached(guest) -> object:
    return json.loads((guest.root / "cache" / "zaqar.json").read_text())


def test_newest_of_several_zaqar_messages_counts(guest, cloud):
    """A difference: upstream takes the oldest, and runs a deployment before those it follows."""
    for which, expected in (("real", {"n": 1}), ("ours", {"n": 3})):
        cloud.queue[:] = [{"n": 1}, {"n": 2}, {"n": 3}]
        guest.conf(heat_conf(cloud, section="zaqar"), RECORD)
        guest.run(which, "--one-time", "zaqar", RECORD=str(guest.root))
        assert cached(guest) == expected
        assert cloud.queue == ([{"n": 2}, {"n": 3}] if which == "real" else [])


def test_zaqar_message_is_not_lost_by_an_error_after_it(guest, cloud):
    cloud.queue[:] = [{"n": 1}, {"n": 2}, "no object"]
    guest.conf(heat_conf(cloud, section="zaqar"), RECORD)
    assert guest.run("ours", "--one-time", "zaqar", RECORD=str(guest.root)).status == 0
    assert cached(guest) == {"n": 2}


def test_temporary_url_is_the_same(guest, cloud):
    cloud.documents["request"] = DOCUMENT
    text = f"[request]\nmetadata_url = {cloud.url}/swift/v1/c/o?temp_url_sig=s&temp_url_expires=9\n"
    same(guest, once(guest, text, collectors=["request"]))


def test_ec2_over_the_network_is_the_same(guest, cloud):
    cloud.ec2.update(
        {
            "/ec2/latest/meta-data/": "ami-id\npublic-keys/\nplacement/\nuser name",
            "/ec2/latest/meta-data/ami-id": "ami-1\n",
            "/ec2/latest/meta-data/user name": "",
            "/ec2/latest/meta-data/placement/": "availability-zone",
            "/ec2/latest/meta-data/placement/availability-zone": "nova",
            "/ec2/latest/meta-data/public-keys/": "0=mine",
            "/ec2/latest/meta-data/public-keys/0/": "openssh-key",
            "/ec2/latest/meta-data/public-keys/0/openssh-key": "ssh-rsa AAAA\n",
        }
    )
    cloud.reply = lambda asked: cloud.answer(
        type(asked)(asked.method, asked.path.replace("%20", " "), asked.headers, asked.body)
    )
    text = f"[ec2]\nmetadata_url = {cloud.url}/ec2/latest/meta-data\n"
    first, _ = same(guest, once(guest, text, collectors=["ec2"]))
    assert json.loads(first.files["cache/ec2.json"][1])["public-keys"] == {
        "0": {"openssh-key": "ssh-rsa AAAA\n"}
    }


def test_ec2_of_a_config_drive_is_the_same(guest, cloud):
    def play(which):
        drive = guest.root / "drive" / "ec2" / "latest"
        drive.mkdir(parents=True)
        (drive / "meta-data.json").write_text('{"instance-id": "i-1"}')
        guest.program("mount", f'echo "$1 $3 $4" >{guest.root}/mounted; cp -r {drive}/../.. /proc')
        guest.program(
            "mount", f'echo "$1 $3 $4" >{guest.root}/mounted; cp -r {guest.root}/drive/ec2 "$2"'
        )
        guest.program("umount", 'rm -r "$2/ec2"')
        guest.program(
            "blkid",
            "printf 'DEVNAME=/dev/vda1\\nLABEL=root\\nTYPE=ext4\\n\\n"
            "DEVNAME=/dev/vdz\\nLABEL=config-2\\nTYPE=iso9660\\n'",
        )
        guest.conf("", RECORD)
        return [guest.run(which, "--one-time", "ec2", RECORD=str(guest.root)) for _ in range(2)]

    first, _ = same(guest, play)
    assert first.files["mounted"][1] == b"/dev/vdz -o ro\n"


def test_local_and_heat_local_are_the_same(guest):
    def play(which):
        guest.write("init-data", DOCUMENT)
        for name in ("b", "a.json", "ä", "Z", ".hidden"):
            guest.write(f"local/{name}", {"from": name, "deployments": DEPLOYMENTS})
        guest.write("local/list", [1, 2])
        (guest.root / "local" / "directory").mkdir()
        guest.conf("", RECORD)
        env = {"RECORD": str(guest.root)}
        done = [guest.run(which, "--one-time", "local", "heat_local", **env)]
        guest.write("local/b", {"changed": True})
        done.append(guest.run(which, "--one-time", "heat_local", "local", **env))
        guest.write("local/b", {"changed": True}, mode=0o602)
        guest.write("init-data", {"changed": 2})
        done.append(guest.run(which, "--one-time", "heat_local", "local", **env))
        (guest.root / "init-data").unlink()
        guest.write("local/b", {"changed": 3})
        done.append(guest.run(which, "--one-time", "heat_local", "local", **env))
        return done

    same(guest, play)


def test_all_sources_in_their_order_are_the_same(guest, cloud):
    cloud.documents.update(
        {"cfn:server": {"c": 1}, "heat": {"h": 1}, "request": {"deployments": [UNGROUPED]}}
    )
    cloud.ec2.update({"/ec2/": "instance-id", "/ec2/instance-id": "i-1"})
    text = (
        cfn_conf(cloud)
        + heat_conf(cloud)
        + f"[ec2]\nmetadata_url = {cloud.url}/ec2\n"
        + f"[request]\nmetadata_url = {cloud.url}/swift/x\n"
        + heat_conf(cloud, section="zaqar")
    )

    def play(which):
        cloud.queue[:] = [{"z": 1}]
        guest.write("init-data", {"boot": 1})
        guest.write("local/file", {"l": 1})
        guest.conf(text, RECORD)
        return [guest.run(which, "--one-time", RECORD=str(guest.root))]

    (done,) = same(guest, play)
    assert len(json.loads(done.files["cache/os_config_files.json"][1])) == 8


@pytest.mark.parametrize("arguments", [["--print"], [], ["--print", "--force", "--one-time"]])
def test_printed_documents_are_the_same(guest, cloud, arguments):
    cloud.documents["cfn:server"] = DOCUMENT

    def play(which):
        guest.write("init-data", {"boot": 1})
        guest.conf(cfn_conf(cloud), "touch $$HOME/ran" if arguments else None)
        return [guest.run(which, *arguments, "heat_local", "cfn", "heat", "local")]

    (done,) = same(guest, play)
    assert json.loads(done.stdout)["web"] == {"port": 80}
    assert "home/ran" not in done.files


@pytest.mark.parametrize("command", ["exit 3", "kill -9 $$$$", "no-such-program", "exit 200"])
def test_failing_command_is_the_same(guest, cloud, command):
    cloud.documents["cfn:server"] = DOCUMENT

    def play(which):
        guest.conf(cfn_conf(cloud), f"echo run >>$$HOME/runs; {command}")
        return [guest.run(which, "--one-time", "cfn") for _ in range(2)]

    _, second = same(guest, play)
    assert second.files["home/runs"][1] == b"run\nrun\n"
    assert "cache/cfn.json.last" not in second.files


def test_force_runs_the_command_each_time(guest, cloud):
    cloud.documents["cfn:server"] = DOCUMENT

    def play(which):
        guest.conf(cfn_conf(cloud), RECORD)
        return [guest.run(which, "--force", "cfn", RECORD=str(guest.root)) for _ in range(2)]

    first, second = same(guest, play)
    assert len(second.files["env"][1]) == 2 * len(first.files["env"][1])


def test_changes_are_found_and_the_first_document_is_kept(guest, cloud):
    documents = [{"a": 1, "b": [2]}, {"b": [2], "a": 1}, {"a": 2}, {}, {"a": 2}]

    def play(which):
        guest.conf(cfn_conf(cloud), RECORD)
        done = []
        for document in documents:
            cloud.documents["cfn:server"] = document
            done.append(guest.run(which, "--one-time", "cfn", RECORD=str(guest.root)))
        return done

    done = same(guest, play)
    assert json.loads(done[-1].files["cache/cfn.json.orig"][1]) == documents[0]
    assert done[1].files["env"] == done[0].files["env"]


@pytest.mark.parametrize(("first", "then"), [("real", "ours"), ("ours", "real")])
def test_either_agent_continues_with_the_other_s_cache(guest, cloud, first, then):
    cloud.documents["cfn:server"] = DOCUMENT
    guest.conf(cfn_conf(cloud), RECORD)
    env = {"RECORD": str(guest.root)}
    before = guest.run(first, "--one-time", "cfn", **env)
    assert guest.run(then, "--one-time", "cfn", **env).files == before.files
    cloud.documents["cfn:server"] = {"new": 1}
    changed = guest.run(then, "--one-time", "cfn", **env)
    assert json.loads(changed.files["cache/cfn.json.last"][1]) == {"new": 1}
    assert changed.files["cache/cfn.json.orig"] == before.files["cache/cfn.json.orig"]
    assert guest.run(first, "--one-time", "cfn", **env).files == changed.files


@pytest.mark.parametrize(("first", "then"), [("real", "ours"), ("ours", "real")])
def test_either_agent_tries_again_what_failed_under_the_other(guest, cloud, first, then):
    cloud.documents["cfn:server"] = DOCUMENT
    guest.conf(cfn_conf(cloud), f"echo ran >>{guest.root}/ran; test -e {guest.root}/works")
    for which in (first, then, first):
        guest.run(which, "--one-time", "cfn")
        guest.write("works", "")
    assert (guest.root / "ran").read_text() == "ran\n" * 2


@pytest.mark.parametrize(
    "arguments",
    [
        ["--print-cachedir"],
        ["--print-cachedir", "--cachedir", "/x"],
        ["--print-cachedir", "--print", "nonsense"],
        ["nonsense"],
        ["--no-such-option"],
        ["--polling-interval"],
        ["-i", "many"],
        ["--one-time=1"],
        ["--cfn-metadata-url", "no-url"],
        ["--config-file", "/no/such/file"],
        ["--config-dir", "/no/such/directory"],
        ["--cachedir", "", "--print-cachedir"],
        ["--print-cache"],
        ["--version"],
        ["--print-cachedir", "--noprint-cachedir", "--print", "local"],
    ],
    ids=" ".join,
)
def test_command_lines_have_the_same_result(guest, arguments):
    def play(which):
        guest.conf()
        return [guest.run(which, *arguments)]

    same(guest, play)


@pytest.mark.parametrize(
    "text",
    [
        "no assignment",
        "[open",
        "[]",
        "  continues nothing",
        "[DEFAULT]\n= no key",
        "before = any section",
        "[DEFAULT]\npolling_interval = many",
        "[DEFAULT]\none_time = perhaps",
        "[cfn]\nmetadata_url = no-url",
        "[default]\ncachedir = /small",
        "[DEFAULT]\ncachedir: /colon",
        "[DEFAULT]\ncachedir = '/quoted'",
        "[DEFAULT]\ncachedir = '/half",
        '[DEFAULT]\ncachedir = "\n',
        "[DEFAULT]\ncachedir = /a\n /b",
        "[DEFAULT]\ncachedir = /a\n\n /b",
        "[DEFAULT]\ncachedir = /a # no comment\n; one\n#one",
        "[DEFAULT]\ncachedir = /a\ncachedir = /b",
        "[DEFAULT]\ncachedir = /$polling_interval/${cfn.timeout}/$$x/\\$y/$1",
        "[CFN]\nstack_name = x\n[DEFAULT]\ncachedir = /$cfn.stack_name",
        "[DEFAULT]\nunknown = 1\n[unknown]\nx = 1\n",
        "",
    ],
    ids=repr,
)
def test_configuration_files_have_the_same_result(guest, text):
    def play(which):
        path = guest.write("other.conf", text)
        return [guest.run(which, "--print-cachedir", "--config-file", str(path))]

    same(guest, play)


def test_precedence_of_settings_is_the_same(guest, cloud):
    """The effective values show in the requested path and the exploded key."""
    key = {"k1": [UNGROUPED], "k2": [{**UNGROUPED, "name": "two"}]}
    cloud.reply = lambda asked: None
    orders = [
        [],
        ["--config-file", "FILE", "--deployment-key", "k2"],
        ["--deployment-key", "k2", "--config-file", "FILE"],
        ["--config-dir", "DIR"],
        ["--config-file", "FILE", "--config-dir", "DIR", "request"],
        ["--request-metadata-url", f"{cloud.url}/swift/line", "--config-file", "FILE"],
        ["--config-file", "FILE", "--request-metadata-url", f"{cloud.url}/swift/line"],
    ]
    cloud.documents["request"] = key

    def play(which):
        done = []
        for arguments, by_environment in itertools.product(orders, (False, True)):
            guest.conf(f"[request]\nmetadata_url = {cloud.url}/swift/home\n", collectors="request")
            url = f"[request]\nmetadata_url = {cloud.url}/swift"
            file = guest.write(
                "one.conf", f"[DEFAULT]\ncollectors = request\ndeployment_key = k1\n{url}/file\n"
            )
            directory = guest.root / "some.d"
            directory.mkdir(exist_ok=True)
            guest.write("some.d/2.conf", f"{url}/two\n")
            guest.write("some.d/1.conf", f"[DEFAULT]\ndeployment_key = k2\n{url}/one\n")
            (guest.root / "home" / "os-collect-config.conf.d").mkdir(exist_ok=True)
            guest.write("home/os-collect-config.conf.d/own.conf", f"{url}/own\n")
            words = {"FILE": str(file), "DIR": str(directory)}
            env = {"OS_REQUEST__METADATA_URL": f"{cloud.url}/swift/env"} if by_environment else {}
            done.append(guest.run(which, *[words.get(w, w) for w in arguments], **env))
        return done

    same(guest, play)
    asked = [request.path for request in cloud.requests if request.method == "GET"]
    assert asked[: len(asked) // 2] == asked[len(asked) // 2 :]
    assert len(set(asked)) == 5
