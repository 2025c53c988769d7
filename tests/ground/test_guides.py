"""The guides match the code and the pages that they describe."""

import re
from pathlib import Path

import pytest

from hotplate.verdict.stages import DEPLOYED

DOCS = Path(__file__).resolve().parents[2] / "docs"
#: A phrase of each row marked † in the tables of differences -> the text in the migration page.
MIGRATION = {
    "ends with a status other than 0": "hooks of your own",
    "empty answer": "An empty\n       answer, or another exit status, is a failure",
    "declared outputs": "outputs that no config declares",
    "<id>.json": "heat-config rerun ID",
    "HEAT_CONFIG_NOTIFY": "HEAT_CONFIG_NOTIFY",
    "/var/lib/heat-config/heat-config-<group>/outputs": "$heat_outputs_path",
    "Hiera 5": "hiera_version: 3",
    "A link that another user": "links of an application's",
    "option of yes or no": "Such text is off",
    "``saltenv``": "inputs ``environment``, ``saltenv`` and ``user``",
    "states of a map": "a map of states",
    "Zaqar's certificate": "ssl_certificate_validation",
    "cannot be a file name": "longer than 200 bytes",
    "--one-time": "--one-time",
    "without a charset": "without a charset",
    "five redirects": "five redirects",
    "~/.netrc": "~/.netrc",
    "control file": "control file",
}

#: Other changes that users notice: removed features and newer versions of tools.
MIGRATION_TOO = (
    *("heat-config-kubelet", "heat-config-atomic", "svc-map", "DIB_INSTALLTYPE_...=source"),
    *("HEAT_CONFIG_DEPLOYED_OLD", "HEAT_KUBELET_MANIFESTS", "HEAT_DOCKER_IMAGE_ARCHIVE"),
    *("heat-config-rebuild-deployed", "``heat-config-notify`` in scripts", "last_metadata"),
    *("``log_level`` of chef", "block YAML", "50-heat-config-docker-cmd", "docker-compose"),
)


def test_guide_of_a_deployment_lists_the_stages_in_order():
    titles = re.findall(r"^([a-z ]+)\n-{4,}$", (DOCS / "incomplete.rst").read_text(), re.MULTILINE)
    assert titles == [stage.value for stage in DEPLOYED]


def test_migration_covers_each_marked_difference():
    rows = [
        row
        for page in ("hooks.rst", "agent.rst")
        for row in re.findall(r"^ +(?:\* )?- † (.+(?:\n {7}.+)*)", (DOCS / page).read_text(), re.M)
    ]
    joined = [" ".join(row.split()) for row in rows]
    assert [row for row in joined if not any(word in row for word in MIGRATION)] == []
    assert [word for word in MIGRATION if not any(word in row for row in joined)] == []


@pytest.mark.parametrize("text", [*MIGRATION.values(), *MIGRATION_TOO])
def test_migration_has_the_instructions(text):
    assert text in (DOCS / "migration.rst").read_text()
