"""``hotplate test --release``: the built images, tested like any others; builds are played."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import played_cases
import pytest
from hotplate_command import hotplate
from played_cases import Played, requested, wait_until
from played_cluster import cluster

from hotplate import cli
from hotplate.cases import releases
from hotplate.errors import UsageError
from hotplate.image.plan import BuildRequest, Layout, Starts

TEMPLATE = "heat_template_version: 2018-08-31\nresources: {}\n"

PLANT = """
import json
from hotplate.errors import HostError
from hotplate.image import build, preflight

def run(self):
    request, folder = self.request, pathlib.Path(os.environ["PLAYED_BUILDS"])
    with (folder / "builds").open("a") as stream:
        stream.write(f"{request.release} {','.join(request.groups)}\\n")
    words = folder / "words.json"
    word = json.loads(words.read_text()).get(request.release) if words.exists() else "pass"
    self.progress.on_step("base system", 1.0)
    if word == "wait":
        while True:
            signal.pause()
    if word == "break":
        error = build.BuildError("disk-image-create failed in the hook \\"50-mine\\"")
        error.lines = ("cp: no such file",)
        raise error
    request.image.parent.mkdir(parents=True)
    request.image.write_text(word or "pass")
    return build.BuildResult(request.image, request.image, request.image, 1.0, {})

build.Build.run = run
# What this host lacks is another test's, and no mirror is asked.
preflight.Preflight.problems = preflight.Preflight.request_problems
"""


class PlayedBuilds(Played):
    """``hotplate test`` in a folder, with played builds and cases."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(folder)
        (folder / "planted" / "sitecustomize.py").write_text(played_cases.PLANT + PLANT)
        (folder / "t.yaml").write_text(TEMPLATE)
        monkeypatch.setenv("PLAYED_BUILDS", str(folder))
        monkeypatch.setenv("PLAYED_TRIES", str(folder))

    @property
    def builds(self) -> list[str]:
        """Return the builds, with release and groups."""
        file = self.folder / "builds"
        return file.read_text().splitlines() if file.exists() else []

    def words(self, **words: str) -> None:
        """Make builds of releases play these words."""
        (self.folder / "words.json").write_text(json.dumps(words))

    def cache(self, *words: str) -> str:
        """Return the output of ``hotplate cache``."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("HOTPLATE_CACHE", str(self.folder / "cache"))
            return hotplate("cache", *words).stdout


@pytest.fixture
def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PlayedBuilds:
    return PlayedBuilds(tmp_path, monkeypatch)


def test_image_of_each_release_is_built_once_and_tested(played):
    played.words(trixie="fail")
    words = ("--release", "bookworm,trixie", "-t", "t.yaml", "--json", "v.json", "-j", "1")
    done = played.run(*words)
    assert done.returncode == 1, done
    outcomes = {name: each["outcome"] for name, each in played.verdicts().items()}
    assert outcomes == {"bookworm.qcow2": "passed", "trixie.qcow2": "failed"}
    assert played.builds == ["bookworm script", "trixie script"]
    lines = done.stdout.splitlines()
    assert lines[0] == "building an image of bookworm (script)"
    assert "    1.0 s  base system" in lines
    assert lines[-1].startswith("1 of 2 images passed; ")
    again = played.run(*words)
    assert again.returncode == 1, again
    assert "building" not in again.stdout
    assert len(played.builds) == 2
    assert "images that were built for hotplate test --release" in played.cache()
    played.cache("clean", "--all")
    # Only the groups differ, and no image is kept.
    assert played.run(*words, "--group", "puppet,script", "-q").returncode == 1
    assert played.builds[2:] == ["bookworm puppet,script", "trixie puppet,script"]


def test_releases_are_rows_beside_images(played):
    (name,) = played.images(web="pass")
    words = ("--release", "bookworm", "--datasource", "openstack,ec2", "-t", "t.yaml", "-j", "1")
    done = played.run(name, *words, "--json", "v.json")
    assert done.returncode == 0, done
    assert [*played.verdicts()] == [
        *("web.raw openstack", "web.raw ec2"),
        *("bookworm.qcow2 openstack", "bookworm.qcow2 ec2"),
    ]


def test_releases_of_a_run_file_are_overridden_by_the_command_line(played):
    played.images(web="pass")
    text = "images: web.raw\nreleases: [bookworm, trixie]\ntemplates: t.yaml\n"
    (played.folder / "m.yaml").write_text(text)
    words = ("-f", "m.yaml", "-j", "1", "--json", "v.json")
    assert played.run(*words, "--group", "puppet").returncode == 0
    assert [*played.verdicts()] == ["web.raw", "bookworm.qcow2", "trixie.qcow2"]
    assert played.builds == ["bookworm puppet", "trixie puppet"]
    assert played.run(*words, "web.raw").returncode == 0
    assert json.loads((played.folder / "v.json").read_text())["case"] == "web.raw"
    assert len(played.builds) == 2
    assert played.run("-f", "m.yaml", "--release", "forky").returncode == 0
    assert played.builds[2:] == ["forky script"]
    (played.folder / "m.yaml").write_text("releases: []\n")
    empty = played.run("-f", "m.yaml")
    assert (empty.returncode, '"releases" is empty' in empty.stderr) == (2, True)


def test_obstacles_are_reported_before_the_first_build(played):
    done = played.run("--release", "bookworm,trixy", "--group", "cobol", "-t", "t.yaml")
    assert done.returncode == 2
    assert "2 things are in the way of the builds:" in done.stderr
    assert '"heat-config-cobol"' in done.stderr and '"trixy"' in done.stderr
    assert played.builds == []


def test_failed_build_is_quoted_and_the_others_are_kept(played):
    played.words(trixie="break")
    words = ("--release", "bookworm,trixie", "-t", "t.yaml", "-j", "1")
    done = played.run(*words, "--json", "v.json")
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "  | cp: no such file",
        'hotplate test: disk-image-create failed in the hook "50-mine"',
    ]
    played.words()
    assert played.run(*words).returncode == 0
    assert played.builds == ["bookworm script", "trixie script", "trixie script"]


def test_signal_ends_a_build(played):
    played.words(bookworm="wait")
    process = played.start("--release", "bookworm", "-t", "t.yaml")
    wait_until(lambda: played.builds)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=played_cases.SECONDS)
    assert process.returncode == 130, (out, err)
    played.words()
    assert played.run("--release", "bookworm", "-t", "t.yaml").returncode == 0


def test_verdict_stream_excludes_build_output(played):
    done = played.run("--release", "bookworm,trixie", "-t", "t.yaml", "--json", "-")
    assert done.returncode == 0, done
    cases = [json.loads(line)["case"] for line in done.stdout.splitlines()]
    assert sorted(cases) == ["bookworm.qcow2", "trixie.qcow2"]
    assert "building an image of trixie" in done.stderr


def test_release_images_are_built_here_and_sent_to_workers(played):
    with cluster(played.folder) as on:
        on.start_worker("only")
        words = ("--release", "bookworm,trixie", "--on", on.address, "--json", "v.json")
        done = played.run(*words)
        assert done.returncode == 0, done
    assert played.builds == ["bookworm script", "trixie script"]
    for name, verdict in played.verdicts().items():
        assert (verdict["outcome"], verdict["case"]) == ("passed", name)
        assert verdict["facts"]["worker"].startswith("tcp://127.0.0.1:")
        assert verdict["image"].startswith(str(played.folder / "cache" / "releases"))
        assert [*played.folder.glob(f"cache-only/images/*/{name}")]


# -- requests ------------------------------------------------------------------------------------


def asked(*words: str) -> BuildRequest:
    command = requested("--release", "trixie", "--arch", "x86_64", *words)
    (request,) = releases.requests(command, command.releases, command.firmwares)
    return request


@pytest.fixture
def _no_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("HOTPLATE_FIRMWARE", "HOTPLATE_ARCH"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("_no_settings")
def test_request_equals_that_of_build():
    request = asked()
    assert (request.release, request.groups) == ("trixie", ("script",))
    assert (request.firmware, request.image_type, request.arch) == (Starts.BIOS, "qcow2", "amd64")
    more = asked(
        *("--group", "puppet,salt", "--group", "script", "--element", "mine", "--package", "jq"),
        *("--no-cloud-init", "--install-type", "package", "--kernel", "generic", "--size", "4"),
    )
    assert more.groups == ("puppet", "salt", "script")
    assert (more.elements, more.packages, more.size) == (("mine",), ("jq",), 4)
    assert (more.cloud_init, more.install_type, more.kernel.value) == (False, "package", "generic")
    assert asked("--partition", "--firmware", "uefi").layout is Layout.PARTITION
    assert asked("--arch", "aarch64").firmware is Starts.UEFI


@pytest.mark.usefixtures("_no_settings")
def test_firmware_option_sets_the_firmware_of_the_build(monkeypatch):
    assert asked("--firmware", "uefi").firmware is Starts.UEFI
    assert asked("--firmware", "auto,uefi").firmware is Starts.UEFI
    assert asked("--firmware", "auto,bios").firmware is Starts.BIOS
    assert asked("--firmware", "uefi,secure-boot").firmware is Starts.SECURE_BOOT
    with pytest.raises(UsageError, match="BIOS or UEFI"):
        asked("--firmware", "bios,secure-boot")
    with pytest.raises(UsageError, match="for one firmware"):
        asked("--firmware", "bios,uefi")
    monkeypatch.setenv("HOTPLATE_FIRMWARE", "uefi")
    assert asked().firmware is Starts.UEFI


@pytest.mark.usefixtures("_no_settings")
@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["web.raw", "--element", "mine"], "--element is for images that are built"),
        (["web.raw", "--partition"], "--partition is for images that are built"),
        (["web.raw", "-t", "t.yaml", "--group", "script"], "--group chooses built-in cases"),
        (["--release", "trixie", "--group", "of-mine"], "there is no built-in case for the group"),
        (["--release", "trixie", "--group", "docker-cmd"], 'needs the group "script"'),
        (["--release", "../trixie"], '"../trixie" is the name of no release'),
        (["--release", ","], "expected the name of a release"),
        (
            ["--os-cloud", "a", "--os-image", "b", "--release", "trixie", "-t", "t.yaml"],
            "and so does --release",
        ),
        (["--os-cloud", "a", "--clean", "--release", "trixie"], "--clean tests nothing"),
    ],
)
def test_conflicting_release_options_are_refused(words, problem, tmp_path, capsys):
    (tmp_path / "web.raw").write_text("")
    (tmp_path / "t.yaml").write_text(TEMPLATE)
    try:
        status = cli.main(["test", *words])
    except SystemExit as error:
        status = error.code
    assert status == 2
    assert problem in capsys.readouterr().err
