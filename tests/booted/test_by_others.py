"""Third-party templates, manifests, tasks, cloud-configs and elements.

The tests fetch them from the package index and from the distribution, and use them unmodified.
``docs/others.rst`` lists the results.
"""

from __future__ import annotations

import ast
import gzip
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from email.mime.multipart import MIMEMultipart
from email.mime.text import MIMEText
from pathlib import Path
from typing import Any

import pytest
import yaml

from hotplate.events.log import EventLog
from hotplate.image.inspect import Image
from hotplate.settings import Settings
from hotplate.stacks import template as templates
from hotplate.stacks.template import Template
from hotplate.trial.trial import Trial
from hotplate.verdict.verdict import Verdict
from tests.booted.disks import in_root, mounted, root_offset

pytestmark = [
    pytest.mark.boots,
    pytest.mark.builds,
    pytest.mark.root,
    pytest.mark.network,
    pytest.mark.long,
]

GROUPS = "script,puppet,cfn-init,ansible"
PUPPET_MODULES = ("stdlib", "concat", "inifile", "ntp", "apache", "xinetd")
PACKAGES = (
    *(f"puppet-module-puppetlabs-{name}" for name in PUPPET_MODULES),
    *(
        "ansible",
        "apache2",
        "libapache2-mod-php",
        "mime-support",
        "xinetd",
        "ntpsec",
        "cron",
        "git",
    ),
)


def _of_the_index(requirement: str, target: Path) -> Path:
    """Install one wheel without its dependencies."""
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"),
            *("--target", target, requirement),
        ],
        timeout=600,
        check=True,
    )
    return target


def _of_the_distribution(package: str, target: Path) -> Path:
    """Unpack a package of this host's distribution, without installing it."""
    target.mkdir()
    subprocess.run(
        ["apt-get", "-qq", "-o", "APT::Sandbox::User=root", "download", package],
        cwd=target,
        timeout=600,
        check=True,
    )
    (file,) = target.glob("*.deb")
    subprocess.run(["dpkg-deb", "-x", file, target / "root"], timeout=600, check=True)
    return target / "root"


@pytest.fixture(scope="module")
def tempest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Heat's own scenario tests."""
    target = tmp_path_factory.mktemp("index") / "tempest"
    _of_the_index("heat-tempest-plugin==3.0.0", target)
    return target / "heat_tempest_plugin" / "tests" / "scenario"


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function that unpacks a package of the distribution."""
    directory = tmp_path_factory.mktemp("distribution")

    def get(package: str) -> Path:
        target = directory / package
        return target / "root" if target.exists() else _of_the_distribution(package, target)

    return get


@pytest.fixture(scope="module")
def image(images: Any) -> Path:
    """An image with the tools and with the packages that the examples configure."""
    words = [word for package in PACKAGES for word in ("--package", package)]
    return images.get("bookworm", "disk", GROUPS, *words)


@pytest.fixture
def judge(image: Path, tmp_path: Path) -> Callable[[Template], Verdict]:
    """Return a function that tests a template in a guest."""

    def run(template: Template) -> Verdict:
        folder = tmp_path / "run"
        folder.mkdir(mode=0o700)
        with Trial(
            Image.open(image),
            template,
            settings=Settings.load(
                {"patience": 300.0, "limit": 1200.0}, environ=os.environ, directory=folder
            ),
            folder=folder,
            events=EventLog(),
            say=print,
            on_reached=lambda mark, server: print(server, mark.stage),
        ) as trial:
            verdict = trial.judge()
        print(verdict.status, *verdict.reasons, *verdict.noticed, sep="\n")
        print(json.dumps(dict(verdict.outputs), indent=1))
        return verdict

    return run


def _constants(module: Path) -> dict[str, str]:
    """Return a Python file's string constants by name, without importing it."""
    return {
        statement.targets[0].id: statement.value.value
        for statement in ast.parse(module.read_text()).body
        if isinstance(statement, ast.Assign)
        and isinstance(statement.targets[0], ast.Name)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    }


def test_heats_scenario_of_software_configs_passes(tempest, judge):
    """test_server_software_config.py of heat-tempest-plugin: its template, files and assertions."""
    scenario = _constants(tempest / "test_server_software_config.py")
    environment = yaml.safe_load((tempest / "templates" / "boot_config_none_env.yaml").read_text())
    verdict = judge(
        Template(
            source="test_server_software_config.yaml",
            template=yaml.safe_load(
                (tempest / "templates" / "test_server_software_config.yaml").read_text()
            ),
            files={"file:///cfg1.sh": scenario["CFG1_SH"], "file:///cfg3.pp": scenario["CFG3_PP"]}
            | {"/cfg1.sh": scenario["CFG1_SH"], "/cfg3.pp": scenario["CFG3_PP"]},
            environment=environment,
            parameters={
                "key_name": "key",
                "flavor": "m1.small",
                "image": "image",
                "network": "net",
                "signal_transport": "CFN_SIGNAL",
                "software_config_transport": "POLL_SERVER_CFN",
            },
        )
    )
    assert verdict.passed
    assert verdict.noticed == ()
    first, second, third = (verdict.outputs[f"res{number}"] for number in (1, 2, 3))
    assert [each["status_code"] for each in (first, second, third)] == [0, 0, 0]
    assert first["result"].startswith("The file /tmp/baaaaa contains fooooo for server ")
    assert second["result"].startswith("The file /tmp/cfn-init-foo contains barrr for server ")
    assert third["result"].startswith("The file /tmp/ba contains fo for server ")
    assert all(each["result"].endswith(" during CREATE") for each in (first, second, third))
    assert first["stderr"] == "Output to stderr\n"
    assert first["stdout"] == "Writing to /tmp/baaaaa\nWritten to /tmp/baaaaa\n"
    assert (second["stdout"], second["stderr"], third["stderr"]) == ("", "", "")


@pytest.mark.parametrize("user_data_format", ["RAW", "HEAT_CFNTOOLS"])
def test_heats_scenario_of_signals_passes(tempest, judge, user_data_format):
    """A wait condition that user data signals with curl, on networks of the template."""
    verdict = judge(
        templates.load(
            tempest / "templates" / "test_server_signal.yaml",
            parameters={
                "key_name": "key",
                "flavor": "m1.small",
                "image": "image",
                "timeout": "600",
                "user_data_format": user_data_format,
            },
        )
    )
    assert verdict.passed
    assert verdict.outputs["wc_data"] == '{"1": "test complete"}'


def test_heats_scenario_of_cfn_init_passes(tempest, judge):
    """cfn-init and cfn-signal in user data, the files of AWS::CloudFormation::Init."""
    verdict = judge(
        templates.load(
            tempest / "templates" / "test_server_cfn_init.yaml",
            parameters={
                "key_name": "key",
                "flavor": "m1.small",
                "image": "image",
                "subnet": "subnet",
                "timeout": "600",
            },
        )
    )
    assert verdict.passed
    assert verdict.outputs["WaitConditionStatus"] == '{"smoke_status": "smoke test complete"}'


def _one_after_the_other(group: str, configs: Mapping[str, str]) -> Template:
    """Return a template with a deployment of each config; the outputs are their results."""
    resources: dict[str, Any] = {
        "server": {
            "type": "OS::Nova::Server",
            "properties": {
                "image": "image",
                "flavor": "m1.small",
                "user_data_format": "SOFTWARE_CONFIG",
            },
        }
    }
    earlier: list[str] = []
    for number, config in enumerate(configs.values()):
        resources[f"config{number}"] = {
            "type": "OS::Heat::SoftwareConfig",
            "properties": {"group": group, "config": config},
        }
        resources[f"deployment{number}"] = {
            "type": "OS::Heat::SoftwareDeployment",
            "depends_on": earlier[-1:],
            "properties": {
                "name": f"{number:02d}",
                "config": {"get_resource": f"config{number}"},
                "server": {"get_resource": "server"},
            },
        }
        earlier.append(f"deployment{number}")
    outputs = {
        f"{number:02d} {name}": {"value": {"get_attr": [f"deployment{number}", "deploy_stdout"]}}
        for number, name in enumerate(configs)
    }
    return Template(
        source=f"examples for {group}",
        template={
            "heat_template_version": "2018-08-31",
            "resources": resources,
            "outputs": outputs,
        },
    )


#: Manifests that change files.
FILES = (
    *(("concat", name) for name in ("init", "fragment")),
    *(("inifile", name) for name in ("ini_setting", "ini_subsetting")),
    *(("stdlib", name) for name in ("init", "file_line", "has_ip_address")),
)

SERVICES = (
    ("xinetd", "init"),
    *(("apache", name) for name in ("init", "mods", "vhost_directories")),
)


@pytest.fixture
def manifest(unpacked) -> Callable[[str, str], str]:
    """Return a function that reads a module's example from its package."""

    def read(module: str, name: str) -> str:
        package = f"puppet-module-puppetlabs-{module}"
        examples = unpacked(package) / "usr" / "share" / "doc" / package / "examples"
        return (examples / f"{name}.pp").read_text()

    return read


def test_service_examples_of_puppet_modules_apply(manifest, judge):
    """Apply the modules' own manifests in Debian's packages, in turn, on one server."""
    manifests = {f"{module}/{name}": manifest(module, name) for module, name in SERVICES}
    verdict = judge(_one_after_the_other("puppet", manifests))
    assert verdict.passed
    assert len(verdict.outputs) == len(SERVICES)


@pytest.fixture(scope="module")
def root(image: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The root file system of a copy of the image."""
    folder = tmp_path_factory.mktemp("image")
    disk = folder / "disk.raw"
    subprocess.run(["qemu-img", "convert", "-O", "raw", image, disk], check=True)
    with mounted(disk, root_offset(disk), folder / "root") as root:
        yield root


@pytest.fixture
def succeeds(root: Path) -> Callable[[str, str], str]:
    """Run a config with the image's hook and tool; return its standard output.

    In a chroot, not in a guest: under emulation some of these take minutes.
    """

    def run(group: str, config: str) -> str:
        deployment = {
            "id": "5c9f8f66-0f50-4b80-b0c4-7d7f5a6f0b7e",
            "name": "example",
            "group": group,
            "config": config,
            "inputs": [],
            "outputs": [],
            "options": {},
        }
        hook = f"/usr/libexec/heat-config/hooks/{group}"
        answer = json.loads(in_root(root, hook, stdin=json.dumps(deployment), seconds=1200))
        assert answer["deploy_status_code"] == 0, answer["deploy_stdout"] + answer["deploy_stderr"]
        return answer["deploy_stdout"]

    return run


@pytest.mark.parametrize(("module", "name"), FILES)
def test_file_examples_of_puppet_modules_apply(manifest, succeeds, module, name):
    assert "Applied catalog" in succeeds("puppet", manifest(module, name))


MODULES = (
    "community/general/plugins/modules/ini_file.py",
    "community/general/plugins/modules/cronvar.py",
    "community/general/plugins/modules/pam_limits.py",
    "ansible/posix/plugins/modules/sysctl.py",
    "community/crypto/plugins/modules/openssl_privatekey.py",
)
#: One of its tasks needs a Git repository in /etc, which the guest does not have.
GIT = "community/general/plugins/modules/git_config.py"


@pytest.fixture
def playbook(unpacked) -> Callable[[str], str]:
    """Return a function that makes a playbook of a module's documented examples."""
    collections = unpacked("ansible") / "usr/lib/python3/dist-packages/ansible_collections"

    def make(module: str) -> str:
        tasks = yaml.safe_load(_constants(collections / module)["EXAMPLES"])
        return yaml.safe_dump([{"hosts": "localhost", "connection": "local", "tasks": tasks}])

    return make


@pytest.mark.parametrize("module", MODULES)
def test_examples_of_ansible_collections_apply(playbook, succeeds, module):
    """Run the tasks in a module's documentation."""
    assert "failed=0" in succeeds("ansible", playbook(module))


def test_failing_ansible_example_is_named_with_its_error(playbook, judge):
    """The verdict has the task's name and git's error."""
    verdict = judge(_one_after_the_other("ansible", {GIT: playbook(GIT)}))
    assert verdict.status == "CREATE_FAILED"
    assert (
        "TASK [Make etckeeper not complaining when it is invoked by cron]: "
        "fatal: --local can only be used inside a git repository"
    ) in verdict.last_line()


#: Examples that make up one server's user data -> commands that check their effect.
CLOUD_CONFIGS = {
    # Its one cloud-config part has only comments, so check the log for the other parts.
    "archive": ("grep 'content-type (foo/wark) userdata' /var/log/cloud-init.log",),
    "boot-cmds run-cmds write-files ssh-keys": (
        "grep '^192.168.1.130 ' /etc/hosts",
        "test -d /run/mydir",
        "test -x /usr/bin/hello",
        "grep -r ssh-rsa /home/*/.ssh/authorized_keys",
    ),
    "user-groups mount-points ca-certs reporting launch-index": (
        "getent group cloud-users",
        "id foobar",
        "grep swap.img /etc/fstab",
        "grep YOUR-ORGS /usr/share/ca-certificates/cloud-init-ca-certs.crt",
    ),
}

# The agent does not wait for cloud-init's last stage, which runs the commands.  "cloud-init status
# --wait" returns early once a module has failed, as some of these examples do.
ENDED = "timeout 600 sh -c 'until test -e /run/cloud-init/result.json; do sleep 1; done'"


@pytest.mark.parametrize("names", CLOUD_CONFIGS)
def test_documented_examples_of_cloud_init_take_effect(unpacked, judge, names):
    """Use them as a server's user data, beside a deployment."""
    examples = unpacked("cloud-init") / "usr/share/doc/cloud-init/examples"
    texts = []
    for name in names.split():
        path = examples / f"cloud-config-{name}.txt"
        compressed = path.with_suffix(".txt.gz")
        texts.append(
            path.read_text() if path.exists() else gzip.decompress(compressed.read_bytes()).decode()
        )
    # Without SELinux, useradd refuses the first user, and cloud-init then adds no others.
    texts = [text.replace("    selinux_user: staff_u\n", "") for text in texts]
    script = "\n".join(
        ("#!/bin/sh -e", ENDED, *(f"{each} >&2" for each in CLOUD_CONFIGS[names]), "echo hello")
    )
    template = _one_after_the_other("script", {"hello": script})
    template.template["resources"]["server"]["properties"]["user_data"] = _user_data(texts)
    verdict = judge(template)
    assert verdict.passed
    assert verdict.outputs == {"00 hello": "hello\n"}


def _user_data(texts: Sequence[str]) -> str:
    """Join several texts into a MIME multi-part message; return a single one as it is."""
    if len(texts) == 1:
        return texts[0]
    message = MIMEMultipart()
    for text in texts:
        message.attach(MIMEText(text, "cloud-config"))
    return message.as_string()


ELEMENTS = ("enable-packages-install", "network-gateway")
JOURNAL = """\
#!/bin/sh
journalctl --sync
journalctl --unit os-collect-config --no-pager --output cat | grep gateway
"""


@pytest.fixture
def build_with(hotplate, tmp_path) -> Callable[..., Any]:
    """Build an image with only these elements of tripleo-image-elements 15.0.0.

    Some of its elements have the names of ours. diskimage-builder takes the first one on the
    element path, but installs the packages in ``package-installs.yaml`` of both.
    """
    _of_the_index("tripleo-image-elements==15.0.0", tmp_path / "index")
    (theirs,) = tmp_path.glob("index/**/tripleo-image-elements")
    linked = tmp_path / "elements"
    linked.mkdir()

    def build(image: Path, *names: str) -> Any:
        words: list[str] = []
        for name in names:
            (linked / name).symlink_to(theirs / name)
            words += ["--element", name]
        words += ["--element-path", str(linked)]
        form = ("--release", "bookworm", "--partition", "-o", image)
        return hotplate("build", *form, *words, timeout=1500)

    return build


def test_tripleo_element_with_missing_dependency_is_named(build_with, tmp_path):
    """Upstream's agent pulled in svc-map; ours does not."""
    done = build_with(tmp_path / "iptables.qcow2", "iptables")
    assert done.status == 1
    assert "iptables: the program 'svc-map'" in done.stderr
    assert "add the element 'svc-map'" in done.stderr


def test_tripleo_elements_build_and_run(build_with, test_image, tmp_path):
    """One of their phase scripts runs and calls os-apply-config."""
    image = tmp_path / "tripleo.qcow2"
    built = build_with(image, *ELEMENTS)
    assert built.status == 0, built.stderr[-3000:]
    template = tmp_path / "journal.json"
    made = _one_after_the_other("script", {"journal": JOURNAL})
    template.write_text(json.dumps(made.template))
    tried = test_image(image, "-t", template)
    assert tried.status == 0, tried.stdout
    lines = tried.verdict["outputs"]["00 journal"].splitlines()
    # The script's output when there is no key "network-config.gateway-dev".
    assert "$new_gatewaydev not set" in lines
    runs = [line for line in lines if line.startswith("dib-run-parts: ")]
    assert runs
    ended = re.compile(r"dib-run-parts: configure\.d/25-set-network-gateway status 0 after ")
    assert all(map(ended.match, runs))
