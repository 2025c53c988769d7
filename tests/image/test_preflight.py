"""All obstacles to a build are reported before anything is fetched."""

from __future__ import annotations

import dataclasses
import functools
import http.server
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from hotplate import cli, paths
from hotplate.errors import HostError, UsageError
from hotplate.image import build, plan, preflight
from hotplate.image.mirrors import APT_HELPER, Mirrors, check_mirror
from hotplate.image.plan import BuildRequest
from hotplate.image.preflight import Preflight, refuse


@pytest.fixture
def request_(tmp_path: Path) -> BuildRequest:
    return BuildRequest(output=tmp_path / "web", cache=tmp_path / "cache", offline=True)


@pytest.fixture
def looks(request_, tmp_path, monkeypatch: pytest.MonkeyPatch):
    """Return a function that returns the problems of a build with a cached base system."""
    monkeypatch.setattr(preflight, "tmpfs_mib", lambda: 0)
    environ = {"TMPDIR": str(tmp_path)}

    def look(*, cached: bool = True, **changes: object) -> list[str]:
        cache = tmp_path / ("full" if cached else "empty")
        changed = dataclasses.replace(request_, cache=cache, **changes)  # type: ignore[arg-type]
        looked = Preflight(changed, environ)
        if cached:
            tarball = plan.base_tarball(changed, looked.mirrors)
            tarball.parent.mkdir(parents=True, exist_ok=True)
            tarball.touch()
            tarball.with_name(f"{tarball.name}.whole").touch()
        return [str(each) for each in looked.problems()]

    return look


def test_possible_build_has_no_problems(looks):
    assert [each for each in looks() if "needs" not in each] == []


def test_each_problem_is_named(looks, tmp_path, monkeypatch):
    element = tmp_path / "elements" / "mine"
    element.mkdir(parents=True)
    (element / "element-deps").write_text("theirs\n")
    monkeypatch.setitem(preflight.ELEMENT_TOOLS, "mine", ("no-such-tool",))
    sentences = looks(
        groups=("script", "cobol", "kubelet"),
        elements=("mine", "gone"),
        element_path=(element.parent, tmp_path / "nowhere"),
        release="bookwurm",
        arch="riscv64",
        output=Path("/proc/image"),
    )
    text = "\n".join(sentences)
    for part in (
        f'no directory "{tmp_path}/nowhere"',
        '"heat-config-cobol" for the group "cobol"',
        '"heat-config-kubelet" for the group "kubelet"',
        'no element "gone"',
        'the element "mine" needs the element "theirs"',
        'no Debian release "bookwurm"',
        "no-such-tool",
        "riscv64",
        '"/proc" cannot be written to',
    ):
        assert part in text, part
    assert len(sentences) == len(set(sentences))


@pytest.mark.parametrize("line", [b"# why vm", b"vm  manifests", b"# na\xefve"])
def test_line_of_element_deps_is_one_name(looks, tmp_path, line: bytes):
    """As diskimage-builder reads it, which has no comments there."""
    element = tmp_path / "elements" / "mine"
    element.mkdir(parents=True)
    (element / "element-deps").write_bytes(b"vm\n\n" + line + b"\n")
    (sentence,) = [
        each
        for each in looks(elements=("mine",), element_path=(element.parent,))
        if "the element" in each
    ]
    name = line.decode("utf-8", "replace")
    assert f'"mine" needs the element "{name}", which is not there' in sentence


def test_missing_chef_and_base_system_are_problems(looks):
    assert any("needs Chef or Cinc" in each for each in looks(groups=("chef",)))
    (sentence,) = [each for each in looks(cached=False) if "base system" in each]
    assert "--offline keeps it from being fetched" in sentence


def test_tools_of_dependencies_are_checked(looks, monkeypatch):
    monkeypatch.setitem(preflight.ELEMENT_TOOLS, "heat-config", ("no-such-tool",))
    assert any("no-such-tool" in each for each in looks())


@pytest.mark.parametrize(
    ("user", "program", "reply", "sentence"),
    [
        (0, "unshare", "unshare: unshare failed: Operation not permitted", "to mount file systems"),
        (1, "unshare", "unshare: unshare failed: Operation not permitted", "to mount file systems"),
        (1, "sudo", "sudo: a password is required", "root, and sudo asks for a password"),
        (1, "sudo", "sudo: 'no new privileges' is set", "sudo refuses: sudo: 'no new"),
    ],
)
def test_missing_right_is_told_before_the_build(
    tmp_path, monkeypatch, user: int, program: str, reply: str, sentence: str
):
    """As in a container without privileges."""
    stubs = {
        "sudo": 'while [ "${1#-}" != "$1" ]; do shift; done\nexec "$@"',
        "unshare": "exit 0",
        program: f'echo "{reply}" >&2\nexit 1',
    }
    for name, script in stubs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(preflight.os, "geteuid", lambda: user)
    with pytest.raises(HostError, match=sentence):
        preflight.check_root()
    (tmp_path / program).write_text("#!/bin/sh\nexit 0\n")
    preflight.check_root()


def test_space_needed_on_one_disk_is_added_up(looks, monkeypatch):
    usage = functools.partial(preflight.shutil._ntuple_diskusage, 1 << 40, 1 << 40)
    needed = preflight.OUTPUT_BYTES + preflight.SCRATCH_BYTES
    monkeypatch.setattr(preflight.shutil, "disk_usage", lambda _: usage(needed))
    assert not any("MB free" in each for each in looks())
    (sentence,) = [each for each in looks(cached=False) if "MB free" in each]
    assert f"at least {(needed + preflight.CACHE_BYTES) // 1_000_000} MB are needed" in sentence
    monkeypatch.setattr(preflight.shutil, "disk_usage", lambda _: usage(needed - 1))
    assert any("MB free" in each for each in looks())


@pytest.mark.parametrize(
    ("script", "sentence"),
    [
        ("echo losetup: cannot find an unused loop device >&2; exit 1", "cannot find an unused"),
        # A container whose /dev was filled before the kernel made that one.
        ("echo /dev/no-such-loop", 'there is no "/dev/no-such-loop"'),
    ],
)
def test_host_without_loop_devices_is_told_before_the_build(
    looks, tmp_path, monkeypatch, script: str, sentence: str
):
    losetup = tmp_path / "losetup"
    losetup.write_text(f"#!/bin/sh\n{script}\n")
    losetup.chmod(0o755)
    which = preflight.shutil.which
    monkeypatch.setattr(preflight.os, "geteuid", lambda: 0)
    monkeypatch.setattr(
        preflight.shutil,
        "which",
        lambda name, **more: str(losetup) if name == "losetup" else which(name, **more),
    )
    (told,) = [each for each in looks() if "loop device" in each]
    assert sentence in told


def test_qemu_without_zstd_is_told_before_the_build(looks, tmp_path, monkeypatch):
    qemu_img = tmp_path / "qemu-img"
    qemu_img.write_text(
        "#!/bin/sh\n"
        "echo \"qemu-img: x: Parameter 'compression_type' does not accept value 'zstd'\" >&2\n"
        "exit 1\n"
    )
    qemu_img.chmod(0o755)
    which = preflight.shutil.which
    monkeypatch.setattr(
        preflight.shutil,
        "which",
        lambda name, **more: str(qemu_img) if name == "qemu-img" else which(name, **more),
    )
    (told,) = [each for each in looks() if "zstd" in each]
    assert told.startswith(f'"{qemu_img}" cannot make an image with "compression_type=zstd": ')
    assert "does not accept value 'zstd'" in told
    assert not any("zstd" in each for each in looks(image_type="raw"))


#: As in diskimage-builder's elements/block-device-mbr; its partitions come from kpartx.
PARTITIONING = "- local_loop: {name: image0}\n- partitioning: {base: image0, label: mbr}\n"


LVM = "- offset_partitioning: {partitions: [{name: root, lvm: {name: lv}}]}\n"
OURS = PARTITIONING.replace("partitioning", "offset_partitioning")


def check_config(folder: Path, config: str, *drivers: str) -> None:
    """Check a configuration on a host with these drivers in /proc/devices."""
    devices = folder / "devices"
    devices.write_text("Block devices:\n  7 loop\n" + "".join(f"{each}\n" for each in drivers))
    preflight.check_block_device({"DIB_BLOCK_DEVICE_CONFIG": config}, devices=devices)


@pytest.mark.parametrize(
    ("config", "drivers", "sentence", "hint"),
    [
        (PARTITIONING, (), 'has "partitioning", which needs device-mapper', "offset_partitioning"),
        (PARTITIONING, ("252 device-mapper",), "kpartx, dmsetup", "apt-get install kpartx dmsetup"),
        (LVM, (), 'has "lvm"', "build on a host that has it"),
    ],
)
def test_block_device_config_is_refused_on_a_host_without_its_needs(
    tmp_path, monkeypatch, config, drivers, sentence, hint
):
    monkeypatch.setattr(preflight.shutil, "which", lambda *_, **__: None)
    (tmp_path / "config.yaml").write_text(config)
    for given in (config, f"file://{tmp_path}/config.yaml"):
        with pytest.raises(HostError, match=sentence) as raised:
            check_config(tmp_path, given, *drivers)
        assert hint in raised.value.hint


@pytest.mark.parametrize("config", ["file:///nowhere/x.yaml", "a: b", "{", "5"])
def test_invalid_block_device_config_is_a_usage_error(tmp_path: Path, config: str):
    with pytest.raises(UsageError, match="DIB_BLOCK_DEVICE_CONFIG is no block device"):
        check_config(tmp_path, config)


@pytest.mark.parametrize("config", [OURS, ""])
def test_block_device_config_without_such_nodes_is_accepted(tmp_path: Path, config: str):
    check_config(tmp_path, config)


def test_build_checks_the_block_device_config(request_, tmp_path):
    environ = {"TMPDIR": str(tmp_path), "DIB_BLOCK_DEVICE_CONFIG": "a: b"}
    sentences = [str(each) for each in Preflight(request_, environ).problems()]
    assert any("DIB_BLOCK_DEVICE_CONFIG" in each for each in sentences)


def test_dry_run_shows_each_variable_that_takes_effect(request_):
    """The caller's own variables too, and the caller's configuration in the place of ours."""
    environ = {
        "DIB_BLOCK_DEVICE_CONFIG": "- local_loop: {name: image0}",
        "DIB_JOURNAL_SIZE": "4",
        "DIB_RELEASE": "sarge",
        "DIB_DEV_USER_PASSWORD": "hunter2",
        "HOME": "/root",
    }
    line = build.Build(dataclasses.replace(request_, epoch=1), environ).shell()
    assert "DIB_JOURNAL_SIZE=4 " in line
    assert "DIB_BLOCK_DEVICE_CONFIG='- local_loop: {name: image0}'" in line
    assert line.count("DIB_BLOCK_DEVICE_CONFIG=") == line.count("DIB_RELEASE=") == 1
    assert 'DIB_DEV_USER_PASSWORD="$DIB_DEV_USER_PASSWORD"' in line and "hunter2" not in line
    assert "sarge" not in line and "HOME=" not in line
    assert f"DIB_LOCKFILES={request_.cache}/dib/" in line


def test_lock_files_of_the_caller_stay(request_):
    line = build.Build(request_, {"DIB_LOCKFILES": "/run/lock/dib"}).shell()
    assert line.count("DIB_LOCKFILES=") == line.count("DIB_LOCKFILES=/run/lock/dib ") == 1


def test_dry_run_makes_the_directory_of_the_image(request_, tmp_path):
    there, gone = (
        build.Build(each, {}).shell().splitlines()[0]
        for each in (request_, dataclasses.replace(request_, output=tmp_path / "out" / "web.qcow2"))
    )
    assert gone == f"mkdir -p {tmp_path}/out"
    assert "mkdir" not in there


def test_dry_run_refuses_a_name_that_disk_image_create_cannot_take(request_, tmp_path):
    spaced = dataclasses.replace(request_, output=tmp_path / "a b" / "web.qcow2")
    looked = Preflight(spaced, {"TMPDIR": str(tmp_path)})
    with pytest.raises(UsageError, match='a b/web" has a space in it'):
        looked.check_request()
    assert not any("has a space" in each.message for each in looked.problems())


def test_directories_that_disk_image_create_cannot_take_are_refused(
    request_, tmp_path, monkeypatch
):
    spaced = tmp_path / "a b"
    shutil.copytree(paths.elements_dir() / "heat-config-script", spaced / "heat-config-script")
    with pytest.raises(UsageError, match=f'TMPDIR is "{spaced}", which has a space in it'):
        Preflight(request_, {"TMPDIR": str(spaced)}).check_request()
    monkeypatch.setattr(paths, "elements_dir", lambda: spaced)
    found = Preflight(request_, {"TMPDIR": str(tmp_path)}).request_problems()
    assert any(f'"{spaced}" has a space or a colon in it' in each.message for each in found)


def test_single_problem_is_raised_and_several_are_listed():
    wrong, lacks = UsageError("a is wrong", hint="b"), HostError("c is missing", hint="d")
    refuse([])
    with pytest.raises(HostError) as one:
        refuse([lacks])
    assert one.value is lacks
    with pytest.raises(UsageError) as several:
        refuse([lacks, wrong])
    assert str(several.value).splitlines() == [
        "2 things are in the way of this build:",
        *("  * c is missing", "    hint: d", "  * a is wrong", "    hint: b"),
    ]
    with pytest.raises(HostError):
        refuse([lacks, lacks])


def test_command_reports_problems_before_anything_is_made(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOTPLATE_CACHE", str(tmp_path / "cache"))
    words = ["build", "--group", "cobol,chef", "--release", "bookwurm"]
    for more in ([], ["--dry-run"]):
        assert cli.main([*words, *more]) == 2
        err = capsys.readouterr().err
        for part in ("3 things are in the way", "cobol", "Chef or Cinc", "bookwurm"):
            assert part in err, part
        assert list(tmp_path.iterdir()) == []


@pytest.fixture
def mirror(tmp_path) -> Iterator[str]:
    """A mirror that has bookworm only."""
    folder = tmp_path / "mirror" / "dists" / "bookworm"
    folder.mkdir(parents=True)
    (folder / "InRelease").write_text("Suite: bookworm\n")
    handler = functools.partial(
        http.server.SimpleHTTPRequestHandler, directory=str(tmp_path / "mirror")
    )
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.skipif(not APT_HELPER.is_file(), reason="needs apt's apt-helper")
def test_mirror_is_asked_for_the_release(mirror, tmp_path, monkeypatch):
    # apt uses the proxy of the host, even for the host itself.
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)
    config = tmp_path / "apt.conf"
    config.write_text('Acquire::http::Proxy::127.0.0.1 "DIRECT";\n')
    monkeypatch.setenv("APT_CONFIG", str(config))
    check_mirror(Mirrors(mirror), "bookworm")
    with pytest.raises(UsageError, match=f'"{mirror}" has no release "trixie"'):
        check_mirror(Mirrors(mirror), "trixie")
    with pytest.raises(HostError, match=r"cannot be asked.*: Could not connect to 127\.0\.0\.1:1 "):
        check_mirror(Mirrors("http://127.0.0.1:1"), "bookworm")
    check_mirror(Mirrors("http://127.0.0.1:1"), "bookworm", helper=tmp_path / "none")
