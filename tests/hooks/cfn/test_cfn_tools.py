"""cfn-get-metadata, cfn-hup and cfn-create-aws-symlinks, and the requests for metadata."""

from __future__ import annotations

import json
import stat
import urllib.parse
import xml.sax.saxutils

import pytest
from keystoneclient.contrib.ec2 import utils as ec2

from .conftest import SECRET, judge

METADATA = {"a": {"b.c": [1, "ü☃"]}, "AWS::CloudFormation::Init": {"config": {}}}
OPTIONS = ("-s", "my stack~é", "-r", "Server", "--access-key", "AK", "--secret-key", SECRET)


def described(metadata, text=True):
    detail = {"Metadata": json.dumps(metadata) if text else metadata, "StackName": "s"}
    result = {"DescribeStackResourceResult": {"StackResourceDetail": detail}}
    return json.dumps({"DescribeStackResourceResponse": result}).encode()


@pytest.fixture
def heat(server, tmp_path):
    """The server as Heat's cfn API, with its address in the place of Heat's user data."""
    server.check = judge
    server.answers = [(200, described(METADATA))]
    (tmp_path / "state").mkdir()
    (tmp_path / "state/cfn-metadata-server").write_text(server.url + "/v1/\n")
    return server


def test_heat_is_asked_with_a_signature(cfn, heat, python, tmp_path):
    done = cfn("cfn-get-metadata", *OPTIONS, python=python, check=0)
    assert json.loads(done.stdout) == METADATA
    parts = urllib.parse.urlsplit(heat.requests[0].path)
    query = dict(urllib.parse.parse_qsl(parts.query))
    assert parts.path == "/v1/"
    assert query["Action"] == "DescribeStackResource"
    assert (query["StackName"], query["LogicalResourceId"]) == ("my stack~é", "Server")
    assert query["ContentType"] == "JSON"
    kept = tmp_path / "cache/last_metadata_Server"
    assert json.loads(kept.read_text()) == METADATA
    assert kept.stat().st_mode & 0o777 == 0o600
    # The kept copy is used when there are no keys.
    done = cfn("cfn-get-metadata", "-r", "Server", "-k", "a.b.c", python=python, check=0)
    assert json.loads(done.stdout) == [1, "ü☃"]


def test_signature_is_that_of_the_published_vector():
    """The vector of the protocol: string to sign and signature without ContentType."""
    request = {
        "host": "10.0.2.2:8000",
        "verb": "GET",
        "path": "/v1/",
        "params": {
            "AWSAccessKeyId": "AKTEST",
            "Action": "DescribeStackResource",
            "LogicalResourceId": "server",
            "SignatureMethod": "HmacSHA256",
            "SignatureVersion": "2",
            "StackName": "demo",
        },
    }
    signature = ec2.Ec2Signer("SKTEST").generate(request)
    assert signature == "plb9ghifVfMi8Vk1aVA71Ayo7ETr0t5yPCwvFRl9+74="


@pytest.mark.parametrize("hint", ["", "/", "/v1", "/v1/", "//"])
def test_address_is_completed(cfn, heat, hint):
    """A hint that ends in /v1/ gave a doubled path."""
    cfn("cfn-get-metadata", *OPTIONS, "--url", heat.url + hint, check=0)
    assert heat.requests[0].path.startswith("/v1/?")


def test_boto_settings_are_used_without_an_address(cfn, heat, tmp_path):
    (tmp_path / "state/cfn-metadata-server").unlink()
    host = heat.url.removeprefix("http://")
    (tmp_path / "state/cfn-boto-cfg").write_text(
        f"[Boto]\ndebug = 0\nis_secure = 0\ncfn_region_endpoint = {host}\n"
    )
    cfn("cfn-get-metadata", *OPTIONS, check=0)


def test_credential_file_is_read(cfn, heat, tmp_path):
    file = tmp_path / "credentials"
    file.write_text(f"AWSAccessKeyId=AK\nAWSSecretKey={SECRET}\n")
    cfn("cfn-get-metadata", "-s", "s", "-r", "r", "-f", str(file), check=0)
    file.write_text("AWSAccessKeyId=AK\n")
    done = cfn("cfn-get-metadata", "-s", "s", "-r", "r", "-f", str(file), check=1)
    assert "AWSSecretKey" in done.stderr


@pytest.mark.parametrize(
    ("answer", "part"),
    [
        ((403, b""), "the stack is suspended"),
        ((400, b""), "no such stack"),
        ((200, b"<html>login</html>"), "not a description"),
        ((200, b""), "not a description"),
        ((200, b"[]"), "not a description"),
        ((200, b"[" * 100_000), "not a description"),
        ((200, described("[1]", text=False)), "not a map"),
        ((200, xml.sax.saxutils.escape("<a/>").encode()), "not a description"),
    ],
)
def test_malformed_answer_of_heat_is_reported_in_a_sentence(cfn, heat, answer, part):
    heat.check = None
    heat.answers = [answer]
    done = cfn("cfn-get-metadata", *OPTIONS, check=1)
    assert part in done.stderr
    assert done.stderr.count("\n") == 1
    assert SECRET not in done.stderr and "Signature" not in done.stderr


def test_wrong_key_is_refused(cfn, heat):
    options = [*OPTIONS[:-1], "wrong"]
    assert "403" in cfn("cfn-get-metadata", *options, check=1).stderr


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--access-key", "AK"], "must be given together"),
        (["--access-key", "AK", "--secret-key", "SK"], "--stack and --resource"),
        (["-f", "/no/such/file"], "cannot be read"),
        ([], "there is no metadata"),
    ],
)
def test_missing_arguments_and_metadata_are_reported(cfn, arguments, part):
    assert part in cfn("cfn-get-metadata", *arguments, check=1).stderr


def hup_files(tmp_path, hooks, main="stack=demo\n"):
    etc = tmp_path / "etc"
    (etc / "hooks.d").mkdir(parents=True, exist_ok=True)
    (etc / "cfn-hup.conf").write_text("[main]\n" + main)
    (etc / "hooks.d/a.conf").write_text(hooks)
    return str(etc)


def test_hup_distinguishes_the_triggers(cfn, tmp_path):
    log = tmp_path / "log"
    etc = hup_files(
        tmp_path,
        "".join(
            f"[{name}]\ntriggers={trigger}\npath={path}\naction=echo {name} >>{log}\n"
            for name, trigger, path in (
                ("update-a", "post.update", "Resources.S.Metadata.a"),
                ("update-all", "post.update,post.add", "Resources.S.Metadata"),
                ("add-b", "post.add", "Resources.S.Metadata.b"),
                ("delete-a", "post.delete", "Resources.S.Metadata.a"),
            )
        ),
    )
    seen = []
    for metadata in ({"a": 1}, {"a": 1}, {"a": 2}, {"a": 2, "b": 1}, {"b": 1}):
        new = tmp_path / "new.json"
        new.write_text(json.dumps(metadata))
        cfn("cfn-hup", "-f", "-c", etc, env={"HEAT_CFN_INIT_METADATA": str(new)}, check=0)
        seen.append(log.read_text().split() if log.exists() else [])
        log.unlink(missing_ok=True)
    assert seen == [
        [],
        [],
        ["update-a", "update-all"],
        ["update-all", "add-b"],
        ["update-all", "delete-a"],
    ]


def test_hup_asks_heat_and_repeats_a_hook_that_failed(cfn, heat, tmp_path):
    log = tmp_path / "log"
    credentials = tmp_path / "credentials"
    credentials.write_text(f"AWSAccessKeyId=AK\nAWSSecretKey={SECRET}\n")
    etc = hup_files(
        tmp_path,
        "[one]\ntriggers=post.update\npath=Resources.S.Metadata.a\n"
        f'action=echo "$CFN_NEW_METADATA" >>{log}; test -e {tmp_path}/fine\n'
        "[two]\ntriggers=post.add\npath=Resources.S.Metadata.b\n"
        f"action=echo b >>{log}\n",
        f"stack=demo\ncredential-file={credentials}\n",
    )

    def look(metadata, check):
        heat.answers = [(200, described(metadata))]
        cfn("cfn-hup", "-c", etc, check=check)
        lines = log.read_text().splitlines() if log.exists() else []
        log.unlink(missing_ok=True)
        return lines

    assert look({"a": 1}, 0) == []
    assert look({"a": 1}, 0) == []
    assert look({"a": 2}, 1) == ['{"a": 2}']
    (tmp_path / "fine").touch()
    assert look({"a": 2}, 0) == ['{"a": 2}']
    assert look({"a": 2}, 0) == []
    assert look({"a": 2, "b": 1}, 0) == ["b"]
    assert look({"b": 1}, 0) == []


def test_hup_runs_its_hook_with_metadata_of_any_length(cfn, tmp_path):
    """Linux takes 128 KiB for one variable; with more, the hook could never start."""
    etc = hup_files(
        tmp_path,
        "[h]\ntriggers=post.update\npath=Resources.S.Metadata.a\n"
        f'action=echo "${{CFN_OLD_METADATA:-none}} ${{CFN_NEW_METADATA:-none}}" >>{tmp_path}/log\n',
    )
    new = tmp_path / "new.json"
    lengths = [10, (128 << 10) - len('CFN_NEW_METADATA={"a": ""}') - 1, 128 << 10, 1 << 20, 11]
    for length in lengths:
        new.write_text(json.dumps({"a": "x" * length}))
        cfn("cfn-hup", "-c", etc, env={"HEAT_CFN_INIT_METADATA": str(new)}, check=0)
    lines = (tmp_path / "log").read_text().splitlines()
    given = [[part != "none" for part in line.replace(": ", ":").split()] for line in lines]
    assert given == [[True, True], [True, False], [False, False], [False, True]]
    assert "the metadata is too long for CFN_NEW_METADATA" in (tmp_path / "cfn-hup.log").read_text()


@pytest.mark.parametrize(
    ("hooks", "main", "part"),
    [
        ("", "stack=s\n", "no hooks"),
        ("[h]\npath=Resources.S.Metadata\naction=true\n", "stack=s\n", "triggers"),
        ("[h]\ntriggers=post.add\npath=Metadata\naction=true\n", "stack=s\n", "must be Resources"),
        ("no ini", "stack=s\n", "not an ini file"),
        ("", "", "stack"),
    ],
)
def test_hup_explains_errors_in_its_files(cfn, tmp_path, hooks, main, part):
    etc = hup_files(tmp_path, hooks, main)
    done = cfn("cfn-hup", "-c", etc, metadata={}, check=1)
    assert part in done.stderr


def test_links_are_made(cfn, tmp_path):
    source, target = tmp_path / "bin", tmp_path / "opt/aws/bin"
    source.mkdir()
    for name in ("cfn-init", "cfn-signal", "other"):
        (source / name).touch()
    arguments = ("cfn-create-aws-symlinks", "-s", str(source), "-t", str(target))
    for _ in range(2):
        cfn(*arguments, check=0)
    assert sorted(path.name for path in target.iterdir()) == ["cfn-init", "cfn-signal"]
    assert (target / "cfn-init").readlink() == source / "cfn-init"
    (target / "cfn-init").unlink()
    (target / "cfn-init").write_text("somebody's own")
    assert "--force" in cfn(*arguments, check=1).stderr
    assert (target / "cfn-init").read_text() == "somebody's own"
    cfn(*arguments, "--force", check=0)
    assert (target / "cfn-init").is_symlink()


@pytest.mark.defect("K15")
@pytest.mark.parametrize(
    "command", ["init", "signal", "get-metadata", "hup", "create-aws-symlinks"]
)
def test_commands_have_help_and_are_executable(cfn, hooks_dir, command, python):
    done = cfn(f"cfn-{command}", "--help", python=python, check=0)
    assert done.stdout.startswith(f"usage: cfn-{command}")
    assert stat.S_IMODE((hooks_dir / f"cfn-{command}").stat().st_mode) == 0o755
