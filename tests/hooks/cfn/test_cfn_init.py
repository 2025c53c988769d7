"""cfn-init on this host: everything that needs neither packages nor accounts of its own.

systemctl is a stub that keeps a list of running services and records its calls: tests run without
a systemd to talk to. Services under a real systemd are for the tests that boot.
"""

from __future__ import annotations

import base64
import bz2
import contextlib
import gzip
import io
import json
import os
import stat
import tarfile
import tempfile
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from heat_cfn import plan, sources
from heat_cfn.problems import CfnError
from heat_cfn.step import Changes
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import program

INIT = "AWS::CloudFormation::Init"


@pytest.fixture
def init(cfn):
    """Run cfn-init with one configuration, or with several when *init* is given."""

    def run(config=None, *arguments, init=None, check=0, **keywords):
        metadata = {INIT: {"config": config} if init is None else init}
        return cfn("cfn-init", *arguments, metadata=metadata, check=check, **keywords)

    return run


def commands(*lines):
    return {"commands": {f"{number:02}": {"command": line} for number, line in enumerate(lines)}}


# Metadata and config sets


@pytest.mark.parametrize(
    ("metadata", "part"),
    [
        ([1], "must be a map, not a list"),
        ({}, 'has no "AWS::CloudFormation::Init"'),
        ({INIT: []}, "must be a map, not a list"),
        ({INIT: {}}, 'no configuration "config"'),
        ({INIT: {"config": [1]}}, '"config" must be a map'),
        ({INIT: {"configSets": {"a": "x"}, "x": {}}}, 'no "default"'),
        ({INIT: {"configSets": {"default": "x"}}}, 'no configuration "x"'),
        ({INIT: {"configSets": {"default": [{"ConfigSet": "y"}]}}}, 'configSets has no "y"'),
        ({INIT: {"configSets": {"default": [{"Set": "y"}]}}}, "must list names"),
        ({INIT: {"configSets": {"default": [7]}}}, "must list names"),
        ({INIT: {"configSets": {"default": []}}}, "is empty"),
        (
            {
                INIT: {
                    "configSets": {"default": {"ConfigSet": "a"}, "a": [{"ConfigSet": "default"}]}
                }
            },
            "refer to each other: default -> a -> default",
        ),
    ],
)
def test_malformed_metadata_is_refused_in_one_sentence(metadata, part):
    with pytest.raises(CfnError) as refusal:
        plan.steps(plan.initial(metadata))
    assert part in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("metadata", "part"), [(None, "there is no metadata"), ("not json", "is not JSON")]
)
def test_unreadable_metadata_is_reported_in_one_sentence(cfn, metadata, part):
    done = cfn("cfn-init", metadata=metadata, check=1)
    assert part in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("section", "value", "part"),
    [
        ("packages", [1], "config/packages"),
        ("packages", {"pacman": {"a": []}}, "not a package manager"),
        ("packages", {"apt": {"-o": []}}, 'begin with "-"'),
        ("packages", {"apt": {"a b": []}}, "one word"),
        ("packages", {"apt": {"a": [{}]}}, "config/packages/apt/a"),
        ("packages", {"rpm": {"a": "no address"}}, "must be an address"),
        ("sources", {"relative": "http://h/x"}, "absolute path"),
        ("sources", {"/a": "s3://bucket/key"}, "must be an address"),
        ("sources", {"/a": ["http://h/x"]}, "must be an address"),
        ("groups", {"g": {"gid": "x"}}, "must be a number"),
        ("users", {"-u": {}}, 'begin with "-"'),
        ("users", {"u": {"groups": {"a": 1}}}, "must be a list"),
        ("files", {"relative": {"content": ""}}, "absolute path"),
        ("files", {"/a/": {"content": ""}}, "absolute path"),
        ("files", {"/a": {}}, 'either "content" or "source"'),
        ("files", {"/a": {"content": "", "source": "http://h/x"}}, "either"),
        ("files", {"/a": {"content": "", "mode": 420}}, "string of octal digits"),
        ("files", {"/a": {"content": "", "mode": "rwx"}}, "string of octal digits"),
        ("files", {"/a": {"content": "!", "encoding": "base64"}}, "not base64"),
        ("files", {"/a": {"content": {}, "encoding": "base64"}}, "must be base64"),
        ("files", {"/a": {"content": "", "encoding": "rot13"}}, "plain"),
        ("files", {"/a": {"content": "", "context": {"a": "b"}}}, "context"),
        ("files", {"/a\0b": {"content": ""}}, "NUL"),
        ("commands", {"a": {}}, 'no "command"'),
        ("commands", {"a": {"command": {}}}, "string or a list"),
        ("commands", {"a": {"command": "a\0b"}}, "NUL"),
        ("commands", {"a": {"command": "x", "env": {"A=B": "c"}}}, "environment"),
        ("commands", {"a": {"command": "x", "ignoreErrors": "maybe"}}, "true or false"),
        ("services", {"upstart": {"a": {}}}, "not a service manager"),
        ("services", {"systemd": {"a": {"enabled": "maybe"}}}, "true or false"),
        ("services", {"systemd": {"a": {"files": {"x": 1}}}}, "must be a list"),
    ],
)
def test_malformed_section_is_refused_in_one_sentence(section, value, part):
    with pytest.raises(CfnError) as refusal:
        plan.steps({"config": {section: value}})
    assert part in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_malformed_section_stops_before_any_step(init, tmp_path):
    first = {"commands": {"a": {"command": f"touch {tmp_path}/done"}}}
    both = {"configSets": {"default": ["a", "b"]}, "a": first, "b": {"packages": [1]}}
    done = init(init=both, check=1)
    assert "b/packages" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "done").exists()


@pytest.mark.defect("K15")
def test_config_sets_are_applied_in_order_and_by_name(init, python):
    config = {
        "configSets": {
            "default": [{"ConfigSet": "one"}, "b"],
            "one": ["a", {"ConfigSet": "two"}],
            "two": "c",
        },
        **{name: {"commands": {"x": {"command": f"echo {name}"}}} for name in "abc"},
    }

    def echoed(*arguments):
        lines = init(None, *arguments, init=config, python=python).stdout.split("\n")
        return [line for line in lines if line in ("a", "b", "c")]

    assert echoed() == ["a", "c", "b"]
    assert echoed("-c", "two,one") == ["c", "a", "c"]
    assert 'configSets has no "three"' in init(None, "-c", "three", init=config, check=1).stderr


def test_unknown_section_is_named(init):
    assert '"config/packges"' in init({"packges": {}, **commands("true")}).stdout


def test_sections_run_in_heats_order(init, tmp_path):
    archive = tmp_path / "a.tar"
    with tarfile.open(archive, "w") as tar:
        tar.add(__file__, "x")
    done = init(
        {
            "services": {"sysvinit": {}},
            "commands": {"a": {"command": "echo"}},
            "files": {str(tmp_path / "f"): {"content": ""}},
            "sources": {str(tmp_path / "s"): archive.as_uri()},
        }
    )
    assert [line.split(":")[0] for line in done.stdout.splitlines() if line] == [
        "sources",
        "files",
        "commands",
    ]


# Files


@pytest.mark.defect("K15")
def test_files_are_written_with_content_and_mode(init, tmp_path, python):
    path = tmp_path / "new/dir"
    done = init(
        {
            "files": {
                f"{path}/text": {"content": "grüß ☃ \0 PLANTED\n", "mode": "000600"},
                f"{path}/json": {"content": {"a": ["ü", None, 1.5]}},
                f"{path}/list": {"content": [1]},
                f"{path}/empty": {"content": "", "mode": "0755"},
                f"{path}/base64": {
                    "content": base64.encodebytes(bytes(range(256))).decode(),
                    "encoding": "base64",
                    "mode": "100640",
                },
                f"{path}/link": {"content": "text", "mode": "120644"},
                f"{path}/ours": {"content": "x", "owner": str(os.getuid()), "group": os.getgid()},
            }
        },
        python=python,
    )
    assert "PLANTED" not in done.stdout + (tmp_path / "cfn-init.log").read_text()
    assert (path / "text").read_text() == "grüß ☃ \0 PLANTED\n"
    assert json.loads((path / "json").read_text()) == {"a": ["ü", None, 1.5]}
    assert json.loads((path / "list").read_text()) == [1]
    assert (path / "base64").read_bytes() == bytes(range(256))
    assert (path / "link").readlink() == Path("text")
    modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in path.iterdir() if p.name != "link"}
    assert modes == {
        "text": 0o600,
        "json": 0o644,
        "list": 0o644,
        "empty": 0o755,
        "base64": 0o640,
        "ours": 0o644,
    }
    assert not [p for p in path.iterdir() if p.name.startswith(".")]


def test_file_is_fetched_from_a_url(init, server, tmp_path):
    server.answers = [(503, b""), (302, b"", {"Location": "/there"}), (200, b"\0\xff" * (1 << 20))]
    target = tmp_path / "file"
    init({"files": {str(target): {"source": server.url + "/x?Signature=s", "mode": "000640"}}})
    assert target.read_bytes() == b"\0\xff" * (1 << 20)
    assert [heard.path for heard in server.requests[1:]] == ["/x?Signature=s", "/there"]
    assert "User-Agent" in server.requests[-1].headers  # GitHub refuses requests without it
    assert "Signature" not in (tmp_path / "cfn-init.log").read_text()


@pytest.mark.parametrize("location", ["file:///etc/passwd", "ftp://127.0.0.1/x", "/again"])
def test_redirect_that_leads_nowhere_is_refused(init, server, tmp_path, location):
    server.answers = [(302, b"", {"Location": location})]
    init({"files": {str(tmp_path / "f"): {"source": f"{server.url}/x"}}}, check=1)
    assert not (tmp_path / "f").exists()
    assert len(server.requests) == (11 if location == "/again" else 1)


@pytest.mark.defect("K14")
@pytest.mark.parametrize(
    ("entry", "part"),
    [
        ({"content": "", "owner": "no-such-user"}, 'no user "no-such-user"'),
        ({"content": "", "group": "no-such-group"}, 'no group "no-such-group"'),
        ({"source": "file:///no/such/file"}, "No such file"),
        ({"source": "http://127.0.0.1:1/x?Signature=s"}, "Connection refused"),
    ],
)
def test_failing_file_is_reported_and_not_left(init, tmp_path, entry, part):
    """heat-cfntools ignores an unknown owner and a failed download."""
    done = init({"files": {str(tmp_path / "d/f"): entry}}, check=1)
    assert f'files: "{tmp_path}/d/f"' in done.stderr and part in done.stderr
    assert "Signature" not in done.stderr
    assert not (tmp_path / "d").exists() or list((tmp_path / "d").iterdir()) == []


def test_broken_download_fails(init, server, tmp_path):
    server.answers = [(299, b"half")]
    done = init({"files": {str(tmp_path / "f"): {"source": server.url}}}, check=1)
    assert "was cut short" in done.stderr
    assert not (tmp_path / "f").exists()


def test_directory_in_the_way_is_reported(init, tmp_path):
    for entry in ({"content": ""}, {"content": "x", "mode": "120777"}):
        assert "there is a directory" in init({"files": {str(tmp_path): entry}}, check=1).stderr


# Sources


def tar_bytes(names=("top/file", "top/run"), mode="w", **members):
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode=mode) as tar:
        for name in names:
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = 4, 0o4755 if name.endswith("run") else 0o600
            tar.addfile(entry, io.BytesIO(b"data"))
        for name, (kind, target) in members.items():
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = kind, target
            tar.addfile(entry)
    return data.getvalue()


def zip_bytes(names=("top/file", "top/run")):
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for name in names:
            entry = zipfile.ZipInfo(name)
            entry.external_attr = (0o100755 if name.endswith("run") else 0o100644) << 16
            archive.writestr(entry, "data")
    return data.getvalue()


def unpack(room: Path, data: bytes) -> None:
    """Unpack an archive into a/target of a directory, in this process."""
    (room / "archive.gz").write_bytes(data)
    address = (room / "archive.gz").as_uri()
    (step,) = sources.steps({str(room / "a/target"): address}, "sources")
    step.run(Changes())


def test_archives_are_unpacked(init, tmp_path, python):
    archives = {mode: tar_bytes(mode=mode) for mode in ("w", "w:gz", "w:bz2", "w:xz")}
    archives["zip"] = zip_bytes()
    for name, data in archives.items():
        (tmp_path / name).write_bytes(data)
    sources = {str(tmp_path / "a" / name): (tmp_path / name).as_uri() for name in archives}
    for _ in range(2):  # the second time over existing files
        init({"sources": sources}, python=python)
    for name in archives:
        top = tmp_path / "a" / name / "top"
        assert (top / "file").read_bytes() == b"data"
        assert stat.S_IMODE((top / "run").stat().st_mode) == 0o755


@pytest.mark.parametrize("kind", ["plain tar", "tgz", "stored gz", "one file"])
def test_zip_at_the_end_of_another_file_is_not_unpacked(init, tmp_path, kind):
    """A zip is recognized by its end; an application's tar often ends in one of its archives."""
    inner = zip_bytes(["inside"])
    names = {"lib/app.jar"}
    if kind == "one file":
        data, names = gzip.compress(inner, 0, mtime=0), {"app"}
    else:
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w:gz" if kind == "tgz" else "w") as tar:
            entry = tarfile.TarInfo("lib/app.jar")
            entry.size = len(inner)
            tar.addfile(entry, io.BytesIO(inner))
        data = gzip.compress(out.getvalue(), 0) if kind == "stored gz" else out.getvalue()
    (tmp_path / "app.gz").write_bytes(data)
    init({"sources": {str(tmp_path / "t"): (tmp_path / "app.gz").as_uri()}}, check=0)
    paths = {path.relative_to(tmp_path / "t") for path in (tmp_path / "t").rglob("*")}
    assert {str(path) for path in paths if (tmp_path / "t" / path).is_file()} == names


def test_self_extracting_zip_is_unpacked(init, tmp_path):
    (tmp_path / "setup").write_bytes(b"#!/bin/sh\nexit 0\n" + zip_bytes())
    init({"sources": {str(tmp_path / "t"): (tmp_path / "setup").as_uri()}}, check=0)
    assert (tmp_path / "t/top/file").read_bytes() == b"data"


@pytest.mark.parametrize(("at", "value"), [(6, 1), (8, 97), (4, 99)])
def test_zip_that_python_cannot_unpack_is_reported_in_a_sentence(tmp_path, at, value):
    """Encrypted (a flag), of an unknown compression, or of a later version of the format."""
    data = bytearray(zip_bytes(["secret"]))
    for mark, shift in ((b"PK\x03\x04", 0), (b"PK\x01\x02", 2)):
        data[data.index(mark) + at + shift] = value
    with pytest.raises(CfnError, match="or compressed in a way that this Python does not support"):
        unpack(tmp_path, data)


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from(["w", "w:gz", "w:bz2", "w:xz", "zip"]),
    st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.binary(max_size=8)), max_size=4),
    st.floats(0, 1),
)
def test_any_archive_is_unpacked_or_refused(kind, changes, length):
    """A broken or hostile archive must end in a sentence, and write no file outside."""
    data = bytearray(zip_bytes() if kind == "zip" else tar_bytes(mode=kind))
    for place, new in changes:
        at = int(place * len(data))
        data[at : at + len(new)] = new
    del data[int(length * len(data)) + 1 :]
    with tempfile.TemporaryDirectory() as room:
        with contextlib.suppress(CfnError):
            unpack(Path(room), data)
        assert {path.name for path in Path(room).iterdir()} <= {"archive.gz", "a"}
        assert [path.name for path in (Path(room) / "a").iterdir()] == ["target"]


@pytest.mark.parametrize("name", ["plain.txt.gz", "plain.txt.bz2"])
def test_single_compressed_files_are_unpacked(init, server, tmp_path, name):
    packer = gzip.compress if name.endswith("gz") else bz2.compress
    server.answers = [(200, packer(b"text"))]
    init({"sources": {str(tmp_path / "t"): f"{server.url}/{name}?Signature=s"}})
    assert (tmp_path / "t/plain.txt").read_bytes() == b"text"


LINK, HARD = tarfile.SYMTYPE, tarfile.LNKTYPE


@pytest.mark.parametrize(
    "data",
    [
        tar_bytes(["../escape"]),
        tar_bytes(["a/../../escape"]),
        tar_bytes(["/tmp/hotplate-escape"]),
        zip_bytes(["../escape"]),
        zip_bytes(["/tmp/hotplate-escape"]),
        tar_bytes([], link=(LINK, "..")),
        tar_bytes([], link=(LINK, "/etc")),
        tar_bytes([], link=(HARD, "../../etc/passwd")),
        tar_bytes([], link=(HARD, "/etc/passwd")),
        tar_bytes([], fifo=(tarfile.FIFOTYPE, "")),
        tar_bytes([], device=(tarfile.CHRTYPE, "")),
    ],
)
def test_archive_cannot_leave_the_directory(tmp_path, data):
    with pytest.raises(CfnError, match=r"points outside|device or a pipe"):
        unpack(tmp_path, data)
    assert [path.name for path in (tmp_path / "a").rglob("*")] == ["target"]
    assert not Path("/tmp/hotplate-escape").exists()


def test_existing_link_does_not_lead_out_of_the_directory(tmp_path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "a/target").mkdir(parents=True)
    (tmp_path / "a/target/top").symlink_to(tmp_path / "outside")
    with pytest.raises(CfnError, match="points outside"):
        unpack(tmp_path, tar_bytes())
    assert list((tmp_path / "outside").iterdir()) == []


@pytest.mark.parametrize(
    "data",
    [b"", b"no archive", tar_bytes(mode="w:gz")[:-40], gzip.compress(b"x" * 9999)[:-9], b"BZh9"],
    ids=["empty", "text", "a part of a tar.gz", "a part of a gz", "a part of a bz2"],
)
def test_damaged_or_unknown_archive_fails(tmp_path, data):
    with pytest.raises(CfnError, match=r"damaged|neither"):
        unpack(tmp_path, data)


def test_githubs_top_directory_is_dropped(tmp_path):
    url = "https://github.com/owner/project/tarball/main"
    sources.unpack(io.BytesIO(tar_bytes()), url, str(tmp_path / "t"))
    assert (tmp_path / "t/file").read_bytes() == b"data"


# Commands


def test_commands_run_in_order_with_their_settings(init, tmp_path):
    done = init(
        {
            "commands": {
                "b": {"command": ["printf", "[%s]\\n", "a b", 7]},
                "a": {"command": 'echo "$X|$Y|$HOME"', "env": {"X": 1, "Y": [True]}},
                "c": {"command": "pwd", "cwd": str(tmp_path)},
                "d": {"command": "echo never", "test": "exit 1"},
                "e": {"command": "exit 3", "ignoreErrors": "true"},
                "f": {"command": "echo last", "test": ["test", "-e", "."], "cwd": str(tmp_path)},
            }
        }
    )
    assert [line for line in done.stdout.splitlines() if not line.startswith("commands:")] == [
        "1|[true]|",
        "[a b]",
        "[7]",
        str(tmp_path),
        "last",
    ]
    assert '"d" was skipped' in done.stdout
    assert '"e" failed with status 3, which is ignored' in done.stdout


@pytest.mark.parametrize(
    ("entry", "part"),
    [
        ({"command": "echo out; echo err >&2; exit 3"}, "failed with status 3"),
        ({"command": "kill -9 $$"}, "ended by signal 9"),
        ({"command": ["/no/such/program"]}, "failed with status 127"),
        ({"command": ["/etc/passwd"]}, "failed with status 126"),
        ({"command": "true", "cwd": "/no/such/dir"}, '"/no/such/dir" (its "cwd") does not exist'),
    ],
)
def test_failing_command_stops_and_is_named(init, tmp_path, entry, part):
    after = {"command": f"touch {tmp_path}/after"}
    done = init({"commands": {"01_x": entry, "02_y": after}}, check=1)
    assert 'commands: "01_x"' in done.stderr and part in done.stderr
    assert not (tmp_path / "after").exists()


def test_two_megabytes_and_any_bytes_pass_through(cfn_init_hook):
    config = {"config": commands("head -c 2097152 /dev/zero | tr '\\0' x; printf '\\377\\0'")}
    answer = cfn_init_hook(config)
    assert answer.status == 0
    assert "x" * 2097152 + "�\0" in answer.stdout


# Services


@pytest.fixture
def systemctl(tmp_path):
    """A stub of systemctl; see the top of this file."""
    directory = tmp_path / "bin"
    program(
        directory / "systemctl",
        f"cd {tmp_path} || exit 1\n"
        'echo "$@" >>calls\n'
        "for unit; do :; done\n"
        'case "$1" in\n'
        '    start | restart) case $unit in bad*) touch "failed-$unit" ;; esac\n'
        '        case $unit in worse*) echo "Job failed." >&2; exit 1 ;; esac\n'
        '        touch "running-$unit" ;;\n'
        '    stop) rm "running-$unit" ;;\n'
        '    is-active) test -e "running-$unit" ;;\n'
        '    is-failed) test -e "failed-$unit" ;;\n'
        "    enable | disable) case $unit in absent* | masked* | broken*)\n"
        '        echo "Failed to $1 unit: Unit file $unit does not exist." >&2; exit 1 ;; esac ;;\n'
        "    show) case $unit in absent*) echo not-found ;; masked*) echo masked ;;\n"
        "        *) echo loaded ;; esac ;;\n"
        "esac",
    )

    class Control:
        environment = {"PATH": f"{directory}:{os.environ['PATH']}"}

        def calls(self):
            """Return the calls since the last time, without queries."""
            path = tmp_path / "calls"
            lines = path.read_text().splitlines() if path.exists() else []
            path.unlink(missing_ok=True)
            return [line for line in lines if not line.startswith(("is-", "show "))]

    return Control()


@pytest.mark.parametrize("manager", ["systemd", "sysvinit"])
def test_services_are_brought_about(init, systemctl, manager):
    def apply(**entry):
        init({"services": {manager: {"web": entry}}}, env=systemctl.environment)
        return systemctl.calls()

    assert apply() == []
    assert apply(enabled=True, ensureRunning="true") == ["enable web.service", "start web.service"]
    assert apply(enabled="true", ensureRunning=True) == ["enable web.service"]
    assert apply(enabled=False) == ["disable web.service"]
    assert apply(ensureRunning=False) == ["stop web.service"]
    assert apply(ensureRunning="false") == []


def test_watched_change_restarts_a_service(init, systemctl, tmp_path):
    archive = tmp_path / "a.tar"
    archive.write_bytes(tar_bytes())
    watched, other = str(tmp_path / "watched"), str(tmp_path / "other")
    triggers = {
        "files": [watched],
        "sources": [str(tmp_path / "s")],
        "commands": ["c"],
        "packages": {"apt": ["p"]},
    }

    def apply(**sections):
        service = {"ensureRunning": True, **triggers}
        init({**sections, "services": {"systemd": {"web": service}}}, env=systemctl.environment)
        return systemctl.calls()

    assert apply(files={watched: {"content": "1"}}) == ["start web.service"]
    assert apply(files={watched: {"content": "1"}}) == []
    assert apply(files={watched: {"content": "2"}}) == ["restart web.service"]
    assert apply(files={watched: {"content": "2", "mode": "000600"}}) == ["restart web.service"]
    assert apply(files={other: {"content": "2"}}) == []
    assert apply(sources={str(tmp_path / "s"): archive.as_uri()}) == ["restart web.service"]
    assert apply(commands={"c": {"command": "true"}}) == ["restart web.service"]
    assert apply(commands={"c": {"command": "true", "test": "false"}}) == []
    assert apply(commands={"d": {"command": "true"}}) == []


@pytest.mark.parametrize("name", ["bad", "worse"])
def test_service_that_does_not_start_fails(init, systemctl, name):
    entry = {"ensureRunning": True}
    done = init({"services": {"systemd": {name: entry}}}, check=1, env=systemctl.environment)
    assert f'services: "{name}"' in done.stderr
    assert ("failed at once" if name == "bad" else "Job failed.") in done.stderr


OFF = {"enabled": "false", "ensureRunning": "false"}


@pytest.mark.parametrize("manager", ["systemd", "sysvinit"])
@pytest.mark.parametrize(
    ("name", "entry", "status"),
    [
        ("absent", OFF, 0),
        ("absent", {"enabled": False}, 0),
        ("masked", OFF, 0),
        ("absent", {"enabled": True}, 1),
        ("absent", {"enabled": False, "ensureRunning": True}, 1),
        ("broken", OFF, 1),
    ],
)
def test_absent_service_is_off(init, systemctl, manager, name, entry, status):
    """heat-cfntools 1.4.2 ignores the status of disable; CloudFormation's own cfn-init fails."""
    triggers = {"commands": ["c"]}
    config = {
        "commands": {"c": {"command": "true"}},
        "services": {manager: {name: {**entry, **triggers}, "web": {"ensureRunning": True}}},
    }
    done = init(config, check=status, env=systemctl.environment)
    if status:
        assert f'services: "{name}": "systemctl" failed with status 1' in done.stderr
    else:
        assert systemctl.calls() == [f"disable {name}.service", "start web.service"]


@pytest.mark.parametrize(
    ("verb", "forms"),
    [("enable", [True, "True", "yes", "1", 1]), ("disable", [False, "FALSE", "no", "0", 0])],
)
def test_truth_values_are_those_of_heat_cfntools(init, systemctl, verb, forms):
    """Its to_boolean takes the first for true, and everything else for false."""
    for form in forms:
        init({"services": {"systemd": {"web": {"enabled": form}}}}, env=systemctl.environment)
        assert systemctl.calls() == [f"{verb} web.service"]


def test_missing_service_manager_is_reported_in_a_sentence(init, tmp_path):
    env = {"PATH": str(tmp_path)}
    for manager in ("systemd", "sysvinit"):
        config = {"services": {manager: {"web": {"ensureRunning": True}}}}
        assert "is not on this machine" in init(config, check=1, env=env).stderr


# Accounts and packages: missing programs


@pytest.mark.defect("K14")
@pytest.mark.parametrize(
    ("section", "program"),
    [
        ({"groups": {"hotplate-g": {}}}, "groupadd"),
        ({"users": {"hotplate-u": {}}}, "useradd"),
        ({"packages": {"apt": {"x": []}}}, "apt-get"),
        ({"packages": {"yum": {"x": []}}}, "yum"),
        ({"packages": {"dnf": {"x": []}}}, "dnf"),
        ({"packages": {"zypper": {"x": []}}}, "zypper"),
        ({"packages": {"rubygems": {"x": []}}}, "gem"),
        ({"packages": {"python": {"x": []}}}, "python3"),
    ],
)
def test_missing_program_fails_and_is_named(init, tmp_path, section, program):
    """With heat-cfntools this is success."""
    done = init(section, check=1, env={"PATH": str(tmp_path)})
    assert f'the program "{program}" is not on this machine' in done.stderr


def test_file_that_cannot_be_run_as_a_command_is_explained(init, tmp_path):
    """A file of the section "files" with Windows line ends; the kernel reports ENOENT."""
    program = tmp_path / "program"
    text = {"content": "#!/bin/sh\r\nexit 0\r\n", "mode": "000755"}
    section = {"files": {str(program): text}, "commands": {"a": {"command": [str(program)]}}}
    done = init(section, check=1)
    assert f'"{program}" cannot be run: the interpreter "/bin/sh\\r" in its' in done.stderr
    assert "its lines end with CR LF" in done.stderr


@pytest.mark.defect("K15")
def test_apt_keeps_the_environment(init, tmp_path):
    """With stubs of apt and dpkg; proxies, for one, are in the environment."""
    for name, body in (
        ("apt-get", f'echo "$http_proxy $DEBIAN_FRONTEND" >{tmp_path}/seen'),
        ("dpkg-query", "echo 'ii |soup|all|1|'"),
    ):
        program(tmp_path / name, body)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "http_proxy": "http://proxy:3128"}
    init({"packages": {"apt": {"soup": []}}}, env=env)
    assert (tmp_path / "seen").read_text() == "http://proxy:3128 noninteractive\n"


# The hook


@pytest.fixture
def cfn_init_hook(hook_of, hooks_dir, tmp_path):
    """Run the hook of the group cfn-init on a config."""
    return hook_of(
        "cfn-init",
        HEAT_CFN_INIT_CMD=hooks_dir / "cfn-init",
        HEAT_CFN_INIT_LAST_METADATA_DIR=tmp_path / "last",
        HEAT_CFN_LOG_DIR=tmp_path,
    )


@pytest.fixture
def found(hooks_dir, tmp_path):
    """The environment in which the hook finds our cfn-init by its name."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/cfn-init").symlink_to(hooks_dir / "cfn-init")
    return {"HEAT_CFN_INIT_CMD": "", "PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}


@pytest.mark.parametrize("form", ["map", "text", "whole"])
def test_hook_applies_its_config(cfn_init_hook, tmp_path, form):
    config = {"config": {"files": {str(tmp_path / "f"): {"content": "PLANTED"}}}}
    config = {"map": config, "text": json.dumps(config), "whole": {INIT: config}}[form]
    answer = cfn_init_hook(config)
    assert (answer.status, answer.stderr) == (0, "")
    assert (tmp_path / "f").read_text() == "PLANTED"
    assert "PLANTED" not in answer.log + answer.stdout
    assert list((tmp_path / "last").iterdir()) == []


@pytest.mark.parametrize("named", [True, False])
def test_other_cfn_init_finds_its_metadata(cfn_init_hook, tmp_path, named):
    """heat-cfntools' one reads a single place; heat-agents' hook writes there for any program."""
    other = program(tmp_path / "bin/cfn-init", f"cat {tmp_path}/last/last_metadata")
    env = {
        "HEAT_CFN_INIT_CMD": str(other) if named else "",
        "PATH": f"{other.parent}:{os.environ['PATH']}",
    }
    answer = cfn_init_hook({"config": {"files": {}}}, env=env)
    assert json.loads(answer.stdout) == {INIT: {"config": {"files": {}}}}
    assert (tmp_path / "last/last_metadata").stat().st_mode & 0o777 == 0o600


@pytest.mark.defect("K14")
def test_hook_fails_with_the_failed_step(cfn_init_hook):
    """heat-agents' hook reports 0."""
    answer = cfn_init_hook({"config": commands("exit 4")})
    assert answer.status == 1
    assert 'commands: "00": it failed with status 4' in answer.stderr


def test_hook_leaves_no_metadata(cfn_init_hook, found, tmp_path):
    answer = cfn_init_hook({"config": commands("ls -a " + str(tmp_path / "last"))}, env=found)
    assert answer.status == 0, answer.stderr
    assert ".metadata" in answer.stdout
    assert list((tmp_path / "last").iterdir()) == []


def test_configsets_option_selects_config_sets(cfn_init_hook):
    config = {"configSets": {"x": "a", "y": "b"}, "a": commands("echo A"), "b": commands("echo B")}
    for option, wanted in (("x", ["A"]), (["y", "x"], ["B", "A"])):
        answer = cfn_init_hook(config, options={"configsets": option})
        assert [line for line in answer.stdout.splitlines() if len(line) == 1] == wanted


@pytest.mark.defect("K18")
def test_parallel_deployments_keep_apart(cfn_init_hook, found, tmp_path):
    """heat-agents give all deployments the same last_metadata."""

    def one(number):
        config = {"config": commands("sleep 0.2", f"echo number {number}")}
        return cfn_init_hook(config, env=found, id=f"c0ffee00-0000-4000-8000-00000000000{number}")

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(one, range(4)))
    assert [answer.stdout.splitlines()[-1] for answer in answers] == [
        f"number {number}" for number in range(4)
    ]
    assert list((tmp_path / "last").iterdir()) == []
