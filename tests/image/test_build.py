"""Real builds with disk-image-create, of an operating system that installs at once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from jsonschema import Draft202012Validator

from hotplate.image import supervise
from hotplate.image.inspect import Image
from hotplate.image.manifest import schema
from hotplate.image.plan import Layout
from hotplate.inspection import signature

pytestmark = [
    pytest.mark.root,
    pytest.mark.builds,
    pytest.mark.tool("debootstrap"),
    pytest.mark.tool("qemu-img"),
]

WAIT = """#!/bin/bash
set -eu
touch "{marker}"
sleep 300
"""


class Builder:
    """``hotplate build`` of the fake operating system, in directories of the test's own."""

    def __init__(self, directory: Path, elements: Path) -> None:
        self.tmp = directory / "tmp"
        self.out = directory / "out"
        self.tmp.mkdir()
        self.out.mkdir()
        self.command = [sys.executable, "-m", "hotplate", "build", "--partition", "--group", ""]
        self.command += ["--element", "fake-os", "--element-path", str(elements), "--size", "1"]
        self.command += ["--cache", str(directory / "cache"), "-o", str(self.out / "image.qcow2")]
        self.environment = dict(os.environ, TMPDIR=str(self.tmp), DIB_JOURNAL_SIZE="4")
        self.works: set[str] = set()

    def watch(self, ended: threading.Event) -> None:
        """Record the names of the builds' directories while they exist."""
        while not ended.wait(0.05):
            self.works.update(path.name for path in self.tmp.glob(f"{supervise.PREFIX}*"))

    def run(self, *more: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self.command, *more],
            env=self.environment,
            cwd=cwd,
            capture_output=True,
            text=True,
            timeout=600,
        )

    def start(self, *more: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*self.command, *more],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            # When the tests were started with & or nohup, these signals are ignored.
            preexec_fn=lambda: [
                signal.signal(number, signal.SIG_DFL) for number in (signal.SIGINT, signal.SIGHUP)
            ],
        )

    def leftovers(self) -> list[str]:
        """Return the leftovers of a build, besides its output and log."""
        left = [str(path) for path in self.tmp.iterdir()]
        left += [str(path) for path in self.out.glob(".*")]
        mounts = Path("/proc/mounts").read_text().splitlines()
        left += [line for line in mounts if str(self.tmp) in line]
        # Only those of our own builds, as others may run beside the tests.
        left += [loop for name in self.works for loop in supervise.loops_of(name)]
        for environ in Path("/proc").glob("[0-9]*/environ"):
            try:
                if f"{self.tmp}/{supervise.PREFIX}".encode() in environ.read_bytes():
                    left.append(environ.parent.name)
            except OSError:
                continue
        return left

    def wait_until_clean(self) -> None:
        end = time.monotonic() + 120
        while self.leftovers() and time.monotonic() < end:
            time.sleep(0.05)
        assert self.leftovers() == []


@pytest.fixture
def builder(tmp_path: Path, fake_elements: Path) -> Iterator[Builder]:
    builder, ended = Builder(tmp_path, fake_elements), threading.Event()
    watch = threading.Thread(target=builder.watch, args=[ended])
    watch.start()
    yield builder
    ended.set()
    watch.join()


def test_build_leaves_image_kernel_log_manifest_bills_and_signature(builder: Builder):
    key = Ed25519PrivateKey.generate()
    secret = builder.tmp.with_name("key.pem")
    secret.write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
    )
    done = builder.run("--sign", str(secret))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "compress" in done.stdout
    names = {path.name for path in builder.out.iterdir()}
    suffixes = (
        "qcow2",
        "vmlinuz",
        "initrd",
        "log",
        "manifest.json",
        "cdx.json",
        "spdx.json",
        "intoto.jsonl",
    )
    assert names == {f"image.{suffix}" for suffix in suffixes}
    verified = signature.verify(builder.out / "image.qcow2", key.public_key(), named="")
    assert set(verified.names) == names - {"image.log", "image.intoto.jsonl"}
    image = Image.open(builder.out / "image.qcow2")
    assert image.layout is Layout.PARTITION
    manifest = json.loads((builder.out / "image.manifest.json").read_text())
    assert manifest["sha256"] == image.sha256()
    assert len(manifest["elements"]["fake-os"]) == 64
    Draft202012Validator(schema()).validate(manifest)
    bill = (builder.out / "image.cdx.json").read_text()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(bill) is None
    assert manifest["sha256"] in bill
    listed = {each["name"]: each for each in json.loads(bill)["components"]}
    assert listed.keys() == manifest["elements"].keys()
    assert "fake-os" not in manifest["commits"]
    commit = {"name": "hotplate:commit", "value": manifest["commits"]["baremetal"]}
    assert commit in listed["baremetal"]["properties"]
    (times,) = json.loads((builder.tmp.with_name("cache") / "history.json").read_text()).values()
    assert {"base system", "compress", "done"} <= times.keys()
    assert len(builder.works) == 1
    assert builder.leftovers() == []


XFS = """
- local_loop: {name: image0}
- mkfs:
    name: mkfs_root
    base: image0
    type: xfs
    label: root
    mount: {mount_point: /, fstab: {options: defaults}}
"""


@pytest.mark.tool("mkfs.xfs")
def test_image_of_xfs_is_built_and_the_unread_parts_are_reported(builder: Builder):
    if "xfs" not in Path("/proc/filesystems").read_text().split():
        pytest.skip("the kernel of this host has no xfs")
    builder.environment["DIB_BLOCK_DEVICE_CONFIG"] = XFS
    for suffix in ("cdx.json", "intoto.jsonl"):
        (builder.out / f"image.{suffix}").write_text("of an earlier image")
    done = builder.run()
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no bill of materials was written: the disk of" in done.stderr
    assert [each.name for each in builder.out.glob("image.*.json*")] == ["image.manifest.json"]
    inspect = [sys.executable, "-m", "hotplate", "inspect", str(builder.out / "image.qcow2")]
    looked = subprocess.run(inspect, capture_output=True, text=True, timeout=600)
    # The verb is asked for it, and lets the kernel mount it; the build does not.
    assert looked.returncode == 0, looked.stderr
    assert "xfs" in looked.stdout


def test_image_replaces_an_older_one_whole(builder: Builder):
    old = builder.out / "image.qcow2"
    old.write_text("old")
    reader = old.open()
    assert builder.run().returncode == 0
    assert reader.read() == "old"
    assert Image.open(old).format == "qcow2"
    assert len(list(builder.out.glob("*.qcow2"))) == 1


def test_relative_path_in_a_variable_is_from_the_callers_directory(
    builder: Builder, fake_elements: Path, add_hook
):
    here = builder.out / "with space"
    (here / "packages").mkdir(parents=True)
    (here / "packages/cinc.deb").write_text("")
    text = '#!/bin/bash\ntest -f "$DIB_HEAT_CHEF_PACKAGE"\n'
    add_hook(fake_elements / "fake-os", "extra-data.d/10-look", text)
    builder.environment["DIB_HEAT_CHEF_PACKAGE"] = "packages/cinc.deb"
    done = builder.run("-o", "web.qcow2", cwd=here)
    assert (done.returncode, done.stderr) == (0, "")
    assert Image.open(here / "web.qcow2").format == "qcow2"


def test_failed_hook_is_named_with_its_output(builder: Builder, fake_elements: Path, add_hook):
    text = "#!/bin/bash\necho the disk is on fire >&2\nexit 9\n"
    add_hook(fake_elements / "fake-os", "pre-finalise.d/42-burning", text)
    done = builder.run()
    assert done.returncode == 1
    assert '"pre-finalise.d/42-burning"' in done.stderr
    assert "the disk is on fire" in done.stderr
    assert "image.log" in done.stderr
    assert [path.name for path in builder.out.iterdir()] == ["image.log"]
    assert builder.leftovers() == []


def test_full_disk_is_an_error_of_the_host(builder: Builder, fake_elements: Path, add_hook):
    text = "#!/bin/bash\nset -eu\nhead -c 2G /dev/zero > $TMP_BUILD_DIR/mnt/big\n"
    add_hook(fake_elements / "fake-os", "pre-finalise.d/42-large", text)
    done = builder.run()
    assert done.returncode == 3
    assert "no space left" in done.stderr
    assert builder.leftovers() == []


@pytest.fixture
def small_cache(builder: Builder):
    """Put the builder's cache on a disk of 1 MiB."""
    cache = builder.out.with_name("cache")
    cache.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", cache], capture_output=True
    )
    if mounted.returncode != 0:
        pytest.skip("no tmpfs can be mounted here")
    yield cache
    subprocess.run(["umount", cache], check=True)


def test_full_cache_is_an_error_of_the_host_before_the_build(builder: Builder, small_cache: Path):
    done = builder.run()
    assert done.returncode == 3
    assert f'MB free in "{small_cache}' in done.stderr
    assert "at least 536 MB are needed" in done.stderr
    assert list(builder.out.iterdir()) == []


MOMENTS = [
    ("root.d/50-wait", signal.SIGKILL),
    ("extra-data.d/50-wait", signal.SIGINT),
    ("pre-finalise.d/50-wait", signal.SIGKILL),
    ("pre-finalise.d/50-wait", signal.SIGTERM),
    ("cleanup.d/50-wait", signal.SIGINT),
]


def wait_until_there(build: subprocess.Popen[str], marker: Path) -> None:
    """Wait until the hook of a running build has made its file."""
    end = time.monotonic() + 300
    while not marker.exists():
        assert build.poll() is None, build.stdout.read()
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("hook", "number"), MOMENTS, ids=[f"{hook[:-8]}-{number.name}" for hook, number in MOMENTS]
)
def test_interrupted_build_leaves_nothing(
    builder: Builder, fake_elements: Path, add_hook, hook: str, number: signal.Signals
):
    marker = builder.out / "there"
    add_hook(fake_elements / "fake-os", hook, WAIT.format(marker=marker))
    with builder.start() as build:
        wait_until_there(build, marker)
        assert builder.leftovers() != []
        build.send_signal(number)
        output, _ = build.communicate(timeout=120)
    builder.wait_until_clean()
    expected = {signal.SIGKILL: -9, signal.SIGINT: 130, signal.SIGTERM: 143}
    assert build.returncode == expected[number]
    assert "Traceback" not in output
    assert sorted(path.name for path in builder.out.iterdir()) == ["image.log", "there"]


@pytest.fixture
def waiting(builder: Builder, fake_elements: Path, add_hook):
    """A build that waits in a hook, and is ended with the test."""
    marker = builder.out / "there"
    add_hook(fake_elements / "fake-os", "root.d/50-wait", WAIT.format(marker=marker))
    with builder.start() as build:
        wait_until_there(build, marker)
        yield build
        build.terminate()
        build.communicate(timeout=120)
    builder.wait_until_clean()


@pytest.mark.usefixtures("waiting")
def test_cache_in_use_by_a_build_is_not_cleaned(builder: Builder):
    cache = builder.out.with_name("cache")
    (kept,) = (cache / "dib").iterdir()
    cleaned = subprocess.run(
        [sys.executable, "-m", "hotplate", "cache", "clean", "--all"],
        env=builder.environment | {"HOTPLATE_CACHE": str(cache)},
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )
    assert f'"{kept}" is in use by a build or a machine; it stays' in cleaned.stdout
    assert kept.is_dir()


@pytest.mark.parametrize(
    ("more", "status", "sentence"),
    [
        (["--group", "cobol"], 2, "heat-config-cobol"),
        (["--element", "gone"], 2, '"gone"'),
        (["--size", "0"], 2, "--size 0"),
        (["--type", "raw"], 2, "suffix of another type"),
        (["-o", "/proc/image"], 3, "cannot be written to"),
        (["-o", "/"], 2, "directory"),
    ],
    ids=lambda value: value[0].strip("-") if isinstance(value, list) else "",
)
def test_bad_input_is_one_sentence(builder: Builder, more: list[str], status: int, sentence: str):
    done = builder.run(*more)
    assert done.returncode == status, done.stderr
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
    assert builder.leftovers() == []


def test_line_of_a_dry_run_works_when_pasted(builder: Builder, tmp_path: Path):
    line = builder.run("--dry-run", "--type", "raw", "-o", str(builder.out / "pasted.raw")).stdout
    path = f"{Path(sys.executable).parent}:/usr/sbin:/usr/bin:/sbin:/bin"
    done = subprocess.run(
        ["bash", "-c", line],
        env={"PATH": path, "HOME": str(tmp_path), "TMPDIR": str(builder.tmp)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout[-2000:]
    assert Image.open(builder.out / "pasted.raw").kernel == builder.out / "pasted.vmlinuz"
