"""The host-side steps of the agent's elements, run as diskimage-builder runs them."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import programs
import pytest

from hotplate.image.plan import dib_elements_dir

ELEMENTS = Path(__file__).resolve().parents[2] / "elements"


def run_step(
    script: Path, hooks: Path, elements: dict[str, Path], **environment: str
) -> "subprocess.CompletedProcess[str]":
    """Run one extra-data.d script after environment.d of its element, as dib does."""
    words = " ".join(f"[{name}]={path}" for name, path in elements.items())
    defaults = sorted(path for path in script.parents[1].glob("environment.d/*"))
    sources = "".join(f"set -eu; source {path}\n" for path in defaults)
    return programs.completed(
        [
            *("bash", "-c"),
            f"get_image_element_array() {{ echo '{words}'; }}\n"
            f"export -f get_image_element_array\n{sources}exec {script}",
        ],
        env={
            "PATH": os.environ["PATH"],
            "TMP_HOOKS_PATH": str(hooks),
            "TMP_MOUNT_PATH": str(hooks / "mnt"),
            "DIB_IMAGE_CACHE": str(hooks / "cache"),
            "DIB_PYTHON_EXEC": sys.executable,
            "IMAGE_ELEMENT": " ".join(elements),
            "ARCH": "amd64",
            **environment,
        },
    )


def element(root: Path, name: str, files: dict[str, str]) -> Path:
    """Make an element whose files are executable."""
    for path, text in files.items():
        (root / name / path).parent.mkdir(parents=True, exist_ok=True)
        (root / name / path).write_text(text)
        (root / name / path).chmod(0o755)
    return root / name


CHECK = ELEMENTS / "os-refresh-config/extra-data.d/60-os-refresh-config-check"


@pytest.mark.defect("A4")
def test_phase_scripts_that_would_never_run_stop_the_build(tmp_path: Path) -> None:
    script = "#!/bin/sh\n"
    a = element(
        tmp_path,
        "a",
        {
            "os-refresh-config/configure.d/10.sh": script,
            "os-refresh-config/configured.d/10": script,
            "os-refresh-config/migration.d/20": script,
            "os-refresh-config/environment.d/10.bash": script,
        },
    )
    (a / "os-refresh-config/migration.d/20").chmod(0o644)
    result = run_step(CHECK, tmp_path, {"a": a})
    assert result.returncode == 1
    assert sorted(result.stderr.splitlines()) == [
        "os-refresh-config: a: 'configure.d/10.sh' would never run: only letters, digits, - and _"
        " in its name",
        "os-refresh-config: a: 'configured.d/10' is in no phase of os-refresh-config",
        "os-refresh-config: a: 'migration.d/20' would never run: it is not executable",
    ]


def test_phase_script_without_an_interpreter_line_is_named(tmp_path: Path) -> None:
    """It works, by bash; so it does not stop the build."""
    a = element(
        tmp_path,
        "a",
        {
            "os-refresh-config/configure.d/10-bare": "echo '#!'\n",
            "os-refresh-config/configure.d/20-empty": "",
            "os-refresh-config/configure.d/30-good": "#!/bin/sh\n",
            "os-refresh-config/configure.d/40-binary": "",
            "os-refresh-config/environment.d/10-variables": "A=1\n",
        },
    )
    (a / "os-refresh-config/configure.d/40-binary").write_bytes(Path("/bin/true").read_bytes())
    result = run_step(CHECK, tmp_path, {"a": a})
    assert result.returncode == 0
    warning = (
        "os-refresh-config: warning: a: 'configure.d/{}' does not begin with '#!'; bash runs it"
    )
    assert sorted(result.stderr.splitlines()) == [
        warning.format(name) for name in ("10-bare", "20-empty")
    ]


def test_element_that_relied_on_svc_map_is_named(tmp_path: Path) -> None:
    """tripleo-image-elements' os-collect-config included it; "ntp" there does not name it."""
    ntp = element(tmp_path, "ntp", {"svc-map": "ntpd: {default: ntp}\n"})
    result = run_step(CHECK, tmp_path, {"ntp": ntp})
    assert result.returncode == 1
    assert result.stderr == (
        "os-refresh-config: ntp: the program 'svc-map' (it reads its file of that name) is not"
        " in the image; add the element 'svc-map'\n"
    )
    svc_map = element(tmp_path, "svc-map", {"bin/svc-map": "#!/bin/sh\n"})
    assert run_step(CHECK, tmp_path, {"ntp": ntp, "svc-map": svc_map}).returncode == 0


def test_files_of_git_and_editors_in_a_phase_stop_no_build(tmp_path: Path) -> None:
    a = element(tmp_path, "a", {"os-refresh-config/configure.d/10": "#!/bin/sh\n"})
    for name in (".gitkeep", ".gitignore", ".keep", "10~", ".#10", ".10.swp"):
        (a / "os-refresh-config/configure.d" / name).touch()
    result = run_step(CHECK, tmp_path, {"a": a, "b": a})
    assert "both ship os-refresh-config/configure.d/10;" in result.stderr
    result = run_step(CHECK, tmp_path, {"a": a})
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize(
    ("line", "missing"),
    [
        ("#!/bin/sh", None),
        ("#! /bin/sh -e", None),
        ("#!/usr/bin/env bash", None),
        ("#!/usr/bin/env -S A=1 bash -u", None),
        ("echo bare", None),
        ("#!/usr/bin/python2.7-nowhere -u", "/usr/bin/python2.7-nowhere"),
        ("#!/usr/bin/env nowhere-3", "nowhere-3"),
        ("#!/bin/sh\r", "/bin/sh (with a carriage return behind it)"),
        ("#!/etc", "/etc"),
        ("#!/etc/passwd", "/etc/passwd"),
    ],
)
def test_interpreter_missing_in_the_image_stops_the_build(
    tmp_path: Path, line: str, missing: str | None
) -> None:
    phase = tmp_path / "usr/libexec/os-refresh-config/configure.d"
    phase.mkdir(parents=True)
    (phase / "10-odd").write_bytes(line.encode() + b"\n")
    (phase / "10-odd").chmod(0o755)
    (phase / "20-off").write_text("#!/nowhere\n")
    programs.program(phase.with_name("environment.d") / "10-x", "#!/nowhere\n")
    step = tmp_path / "step"
    finalise = ELEMENTS / "os-refresh-config/finalise.d/90-os-refresh-config-check"
    step.write_text(finalise.read_text().replace("/usr/libexec", f"{tmp_path}/usr/libexec"))
    result = programs.completed(["bash", step])
    expected = ""
    if missing:
        expected = (
            "os-refresh-config: 'configure.d/10-odd' would never run: the image has no program"
            f" '{missing}'\n"
        )
    assert (result.returncode, result.stderr) == (1 if missing else 0, expected)


@pytest.mark.parametrize("tree", ["os-refresh-config/configure.d/10", "os-apply-config/etc/x"])
def test_two_elements_cannot_bring_the_same_file(tree: str, tmp_path: Path) -> None:
    elements = {name: element(tmp_path, name, {tree: "#!/bin/sh\n"}) for name in ("a", "b")}
    result = run_step(CHECK, tmp_path, elements)
    assert result.returncode == 1
    assert f"both ship {tree}; remove one of them" in result.stderr


def test_this_collection_passes_its_own_check(tmp_path: Path) -> None:
    elements = {path.name: path for path in ELEMENTS.iterdir() if path.is_dir()}
    result = run_step(CHECK, tmp_path, elements)
    assert (result.returncode, result.stderr) == (0, "")


def test_each_file_has_one_template_and_one_runner() -> None:
    """The incumbents shipped these twice, and the last element copied won."""
    for name in ("etc/os-collect-config.conf", "configure.d/20-os-apply-config"):
        assert len(list(ELEMENTS.glob(f"*/os-*-config/{name}"))) == 1


def install(script: Path, root: Path, **environment: str) -> None:
    """Run a step of install.d with `root`/hooks as the build's folder and `root` as the image."""
    step = root / "hooks/install.d" / script.name
    step.parent.mkdir(parents=True, exist_ok=True)
    step.write_text(script.read_text().replace("/usr/l", f"{root}/usr/l"))
    (root / "usr/local/bin").mkdir(parents=True, exist_ok=True)
    subprocess.run(["bash", step], env={**os.environ, **environment}, check=True, timeout=60)


@pytest.mark.defect("A6")
def test_image_has_the_runner_of_the_phases(tmp_path: Path) -> None:
    """None of the agent's packages brings dib-run-parts."""
    name = "os-refresh-config"
    files = element(tmp_path, "hooks", {"os-refresh-config/configure.d/10": "#!/bin/sh\nid -u"})
    (files / f"{name}-files").symlink_to(ELEMENTS / name / f"{name}-files")
    install(ELEMENTS / name / "install.d/60-os-refresh-config-scripts", tmp_path)
    result = programs.completed(
        [tmp_path / "usr/local/bin/dib-run-parts", tmp_path / f"usr/libexec/{name}/configure.d"],
        check=True,
    )
    assert result.stdout == f"{os.getuid()}\n"


PROGRAMS = ("os-apply-config", "os-collect-config", "os-refresh-config")


def types(install_type: str) -> dict[str, str]:
    """Return the install type of each of the agent's programs, as the element's defaults set it."""
    return {f"DIB_INSTALLTYPE_{name.replace('-', '_')}": install_type for name in PROGRAMS}


def gather(root: Path, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Run the host step of the element heat-agent."""
    script = ELEMENTS / "heat-agent/extra-data.d/50-heat-agent"
    elements = {"heat-agent": ELEMENTS / "heat-agent"}
    (root / "hooks").mkdir()
    return run_step(script, root / "hooks", elements, **environment)


def test_slim_programs_run_from_the_installed_files(tmp_path: Path) -> None:
    gathered = gather(tmp_path, **types("slim"))
    assert (gathered.returncode, gathered.stderr) == (0, "")
    install(ELEMENTS / "heat-agent/install.d/40-heat-agent", tmp_path)
    library = tmp_path / "usr/libexec/heat-config/lib"
    for name in PROGRAMS:
        step = f"{name}/install.d/{name}-slim-install/50-{name}-command"
        install(ELEMENTS / step, tmp_path)
        result = programs.completed(
            [tmp_path / "usr/local/bin" / name, "--help"],
            env={"HEAT_CONFIG_LIB": str(library), "PATH": "/nowhere"},
            check=True,
        )
        assert result.stdout.startswith(f"usage: {name} ")
    assert (tmp_path / "usr/local/bin/os-config-applier").resolve().name == "os-apply-config"
    kinds = {path.suffix for path in library.rglob("*") if path.is_file()}
    assert kinds == {".py", ".pyc"}


@pytest.mark.parametrize("name", ["heat-config", "heat-config-notify"])
def test_help_is_printed_without_compiled_docstrings(tmp_path: Path, name: str) -> None:
    assert gather(tmp_path, **types("slim")).returncode == 0
    install(ELEMENTS / "heat-agent/install.d/40-heat-agent", tmp_path)
    library = tmp_path / "usr/libexec/heat-config/lib"
    shown = programs.completed(
        [sys.executable, "-IS", ELEMENTS.parent / "hooks" / name, "--help"],
        env={"HEAT_CONFIG_LIB": str(library)},
        check=True,
    )
    assert f"usage: {name} " in shown.stdout
    compiled = (path.read_bytes() for path in library.rglob("*.pyc"))
    assert not [each for each in compiled if b"for a person on the machine" in each]


@pytest.fixture
def python_of(tmp_path: Path) -> Callable[[str], Path]:
    """Put a Python of a version first on a path of its own, as `python3`."""

    def put(version: str) -> Path:
        (tmp_path / "path").mkdir()
        (tmp_path / "path/python3").symlink_to(programs.python_of(version))
        return tmp_path / "path"

    return put


@pytest.mark.parametrize("version", ["3.9", "3.10", "3.11", "3.12", "3.13"])
def test_agent_installs_for_the_python_of_the_image(
    tmp_path: Path, python_of: Callable[[str], Path], version: str
) -> None:
    """Ubuntu 22.04 has 3.10 and 24.04 has 3.12; a directory stands in for their images."""
    path = f"{python_of(version)}:{os.environ['PATH']}"
    assert gather(tmp_path, **types("slim")).returncode == 0
    install(ELEMENTS / "heat-agent/install.d/40-heat-agent", tmp_path, PATH=path)
    library = tmp_path / "usr/libexec/heat-config/lib"
    tag = f"cpython-{version.replace('.', '')}"
    sources = {path.with_suffix("") for path in library.rglob("*.py")}
    compiled = {path.parent.parent / path.name.split(".")[0] for path in library.rglob("*.pyc")}
    assert sources == compiled
    assert all(tag in path.name for path in library.rglob("*.pyc"))
    for name in PROGRAMS:
        program = (tmp_path / "usr/libexec/heat-agent" / name).read_text()
        result = programs.completed(
            [tmp_path / "path/python3", "-IS", "-W", "error", "-c", program, "--help"],
            env={"HEAT_CONFIG_LIB": str(library)},
        )
        assert result.returncode == 0, result.stderr
        assert result.stdout.startswith("usage: ")


@pytest.mark.parametrize(("version", "status"), [("3.8", 1), ("3.9", 0)])
def test_python_too_old_stops_the_build_before_packages(
    python_of: Callable[[str], Path], version: str, status: int
) -> None:
    """openSUSE Leap 15.6 has 3.6; the hooks compile with it, and fail when they are run."""
    result = programs.completed(
        [ELEMENTS / "heat-agent/pre-install.d/15-heat-agent-python"],
        env={
            "PATH": f"{python_of(version)}:{os.environ['PATH']}",
            "DISTRO_NAME": "opensuse",
            "DIB_RELEASE": "15.6",
        },
    )
    assert result.returncode == status
    expected = (
        "heat-agent: the agent and the hooks need Python 3.9 or later; the image (opensuse 15.6)"
        " has Python 3.8"
    )
    assert result.stderr[: len(expected)] == expected * status


def test_upstreams_programs_are_not_gathered(tmp_path: Path) -> None:
    assert gather(tmp_path, **types("package")).returncode == 0
    assert list((tmp_path / "hooks").iterdir()) == []
    install(ELEMENTS / "heat-agent/install.d/40-heat-agent", tmp_path)
    assert not (tmp_path / "usr/libexec").exists()


def test_missing_slim_program_stops_the_build(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    result = gather(tmp_path, DIB_HEAT_HOOKS_DIR=str(tmp_path / "empty"), **types("slim"))
    assert result.returncode == 1
    assert "there is no program" in result.stderr
    assert "DIB_INSTALLTYPE_os_collect_config=slim asks for" in result.stderr


@pytest.mark.defect("A8")
def test_files_of_git_and_editors_become_no_templates(tmp_path: Path) -> None:
    meant = ["etc/x", "etc/x.oac", "root/.my.cnf"]
    left = [".gitignore", "etc/.gitkeep", "etc/.x.swp", "etc/.#x", "etc/x~"]
    for name in meant + left:
        path = tmp_path / "hooks/os-apply-config" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    install(ELEMENTS / "os-apply-config/install.d/60-os-apply-config-templates", tmp_path)
    templates = tmp_path / "usr/libexec/os-apply-config/templates"
    installed = (path for path in templates.rglob("*") if path.is_file())
    assert sorted(str(path.relative_to(templates)) for path in installed) == meant


def test_collector_runs_in_its_phase(tmp_path: Path) -> None:
    elements = {name: ELEMENTS / name for name in ("heat-config", "heat-config-script")}
    hooks = tmp_path / "hooks"
    subprocess.run(["cp", "-R", ELEMENTS / "heat-config", hooks], check=True)
    result = run_step(hooks / "extra-data.d/50-heat-config-hooks", hooks, elements)
    assert (result.returncode, result.stderr) == (0, "")
    assert (hooks / "heat-config-collected/index.json").is_file()


def test_element_that_hides_the_user_data_is_refused(tmp_path: Path) -> None:
    script = ELEMENTS / "heat-config-cloud-init/extra-data.d/40-heat-config-cloud-init"
    result = run_step(script, tmp_path, {"cloud-init": tmp_path, "cloud-init-nocloud": tmp_path})
    assert result.returncode == 1
    assert "'cloud-init-nocloud' hides Heat's user data" in result.stderr
    assert run_step(script, tmp_path, {"cloud-init": tmp_path}).returncode == 0
    result = run_step(script, tmp_path, {"cloud-init": tmp_path, "simple-init": tmp_path})
    assert result.returncode == 1
    assert "'simple-init' removes cloud-init" in result.stderr
    others = {"simple-init": tmp_path, "heat-config-bootstrap": tmp_path}
    assert run_step(script, tmp_path, others).returncode == 0


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, "slim slim slim"),
        ({"DIB_DEFAULT_INSTALLTYPE": "source"}, "slim slim slim"),
        ({"DIB_DEFAULT_INSTALLTYPE": "package"}, "package package package"),
        ({"DIB_INSTALLTYPE_os_apply_config": "package"}, "slim package slim"),
        (
            {"DIB_DEFAULT_INSTALLTYPE": "package", "DIB_INSTALLTYPE_os_refresh_config": "source"},
            "package package slim",
        ),
    ],
)
def test_install_types_are_those_chosen_or_slim(given: dict[str, str], expected: str) -> None:
    defaults = ELEMENTS / "heat-agent/environment.d/12-heat-agent.bash"
    names = "$DIB_INSTALLTYPE_os_{}_config"
    shown = " ".join(names.format(name) for name in ("collect", "apply", "refresh"))
    result = programs.completed(
        ["bash", "-euc", f"source {defaults}; source {defaults}; echo {shown}"],
        env={"PATH": os.environ["PATH"], **given},
        check=True,
    )
    assert result.stdout.strip() == expected


@pytest.mark.parametrize(("given", "expected"), [({}, "3"), ({"DIB_PYTHON_VERSION": "2"}, "2")])
def test_debian_has_python_3(given: dict[str, str], expected: str) -> None:
    """The element dib-python, which svc-map needs, says 2 for every release of Debian."""
    elements = (
        ELEMENTS / "heat-agent/environment.d/12-heat-agent.bash",
        dib_elements_dir() / "dib-python/environment.d/50-dib-python-version",
    )
    sources = "".join(f"source {path}\n" for path in elements)
    result = programs.completed(
        ["bash", "-euc", f"{sources}echo $DIB_PYTHON_VERSION"],
        env={"PATH": os.environ["PATH"], "DISTRO_NAME": "debian", "DIB_RELEASE": "trixie", **given},
        check=True,
    )
    assert result.stdout.strip() == expected


def test_unknown_install_type_is_refused(tmp_path: Path) -> None:
    result = gather(tmp_path, **{**types("slim"), "DIB_INSTALLTYPE_os_apply_config": "venv"})
    assert result.returncode == 1
    expected = "DIB_INSTALLTYPE_os_apply_config is 'venv'; use 'slim' or 'package'"
    assert expected in result.stderr


@pytest.mark.parametrize(
    ("element", "name", "wrong", "right"),
    [
        ("heat-config-lean", "DIB_HEAT_LEAN_INITRD", "lst", "most"),
        ("heat-config-lean", "DIB_HEAT_LEAN_CLOUD_INIT", "no", "0"),
        ("heat-config-lean", "DIB_HEAT_LEAN_DOC", "yes", "1"),
        ("heat-config-bootstrap", "DIB_HEAT_BOOTSTRAP_SECONDS", "5m", "600"),
        ("heat-config-bootstrap", "DIB_HEAT_BOOTSTRAP_VENDOR_DATA", "no", "0"),
    ],
)
def test_wrong_value_of_a_variable_stops_the_build_at_once(element, name, wrong, right):
    """diskimage-builder reads environment.d before it makes anything."""
    (defaults,) = ELEMENTS.glob(f"{element}/environment.d/*")

    def read(value: str) -> "subprocess.CompletedProcess[str]":
        command = ["bash", "-euc", f"source {defaults}; source {defaults}; echo ${name}"]
        environment = {"PATH": os.environ["PATH"], name: value}
        return programs.completed(command, env=environment)

    refused = read(wrong)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert f"{name} is '{wrong}'" in refused.stderr
    assert len(refused.stderr.splitlines()) == 1
    assert read(right).stdout == f"{right}\n"
    assert read("").returncode == 0


EFI_CHECK = ELEMENTS / "block-device-offset-efi/extra-data.d/10-block-device-offset-efi-check"


@pytest.mark.parametrize(
    ("wanted", "system", "arch", "sentence"),
    [
        ("0", "gentoo", "arm64", ""),
        ("1", "debian", "amd64", ""),
        ("1", "ubuntu", "amd64", "this image is ubuntu for amd64"),
        ("1", "fedora", "amd64", "this image is fedora for amd64"),
        ("1", "debian", "arm64", "this image is debian for arm64"),
        ("yes", "debian", "amd64", "DIB_OFFSET_EFI_SECURE_BOOT is 'yes'; expected 0 or 1"),
    ],
)
def test_secure_boot_is_refused_where_no_signed_loader_is_known(
    tmp_path, wanted, system, arch, sentence
):
    done = run_step(
        EFI_CHECK,
        tmp_path,
        {"block-device-offset-efi": EFI_CHECK.parents[1]},
        DIB_OFFSET_EFI_SECURE_BOOT=wanted,
        DISTRO_NAME=system,
        ARCH=arch,
    )
    assert (done.returncode, sentence in done.stderr) == (1 if sentence else 0, True)
    assert len(done.stderr.splitlines()) == bool(sentence)


VARIABLES = ELEMENTS / "heat-config/root.d/01-heat-config-variables"


@pytest.mark.parametrize(
    ("name", "warning"),
    [
        ("DIB_HEAT_HOOK", "; did you mean DIB_HEAT_HOOKS_DIR?"),
        ("DIB_HEAT_PUPET_PACKAGE", "; did you mean DIB_HEAT_PUPPET_PACKAGE?"),
        ("DIB_OFFSET_EFI_CMD_LINE", "; did you mean DIB_OFFSET_EFI_CMDLINE?"),
        ("DIB_HEAT_X", ""),
    ],
)
def test_variable_that_no_element_reads_is_named(tmp_path: Path, name: str, warning: str) -> None:
    """It does not stop the build: diskimage-builder takes any variable."""
    elements = {"heat-config": ELEMENTS / "heat-config"}
    result = run_step(VARIABLES, tmp_path, elements, **{name: "1"})
    assert (result.returncode, result.stderr) == (
        0,
        f"heat-config: warning: no element reads {name}{warning}\n",
    )


def test_variables_that_an_element_reads_are_not_named(tmp_path: Path) -> None:
    """Those of elements that are not in this image are known, too."""
    mine = element(tmp_path / "collection", "mine", {"install.d/10": "echo $DIB_HEAT_MINE\n"})
    elements = {"heat-config": ELEMENTS / "heat-config", "mine": mine}
    known = {"DIB_HEAT_MINE": "1", "DIB_HEAT_SALT_LOCK": "/f", "DIB_HEAT_HOOKS_DIR": "/h"}
    result = run_step(VARIABLES, tmp_path, elements, **known, DIB_RELEASE="trixie")
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize("name", ["heat-agent", "heat-config-cloud-init"])
def test_files_of_the_image_have_not_the_umask_of_the_builder(tmp_path: Path, name: str) -> None:
    """systemd-networkd does not run as root, and could not read its configuration."""
    step = element(tmp_path, "a", {"install.d/10": "#!/bin/sh\ntouch $TMP_HOOKS_PATH/made\n"})
    (step / "environment.d").symlink_to(ELEMENTS / name / "environment.d")
    before = os.umask(0o077)
    try:
        result = run_step(step / "install.d/10", tmp_path, {})
    finally:
        os.umask(before)
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "made").stat().st_mode & 0o777 == 0o644
