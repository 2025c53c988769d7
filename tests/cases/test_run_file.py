"""A run file: its content, and the messages about invalid content."""

from __future__ import annotations

from pathlib import Path

import pytest
from played_cases import Played, cases_of, requested

from hotplate.cases import run_file
from hotplate.errors import UsageError
from hotplate.settings import Settings

TEMPLATE = "heat_template_version: 2018-08-31\nresources: {}\n"
WHOLE = """
images: [web.raw, "more/*.raw"]
templates:
  - small.yaml
  - template: small.yaml
    name: large
    parameters: {port: 80, when: 2026-01-01}
    environments: lab.yaml
    expect: {status: CREATE_FAILED, outputs: {port: "80"}}
datasource: [openstack, ec2]
firmware: bios
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "runs"
    (folder / "more").mkdir(parents=True)
    for name in ("web.raw", "more/b.raw", "more/a.raw"):
        (folder / name).write_text("pass")
    (folder / "small.yaml").write_text(TEMPLATE)
    (folder / "lab.yaml").write_text("{}")
    return folder


def cases_in(folder: Path, text: str, *words: str):
    (folder / "matrix.yaml").write_text(text)
    return cases_of("-f", str(folder / "matrix.yaml"), *words)


def test_complete_run_file_makes_all_cases(folder):
    """All names are relative to the file, regardless of the working directory."""
    table = cases_in(folder, WHOLE)
    assert len(table) == 3 * 2 * 2
    assert table[0].name == "web.raw small.yaml openstack"
    assert table[-1].name == "b.raw large ec2"
    assert table[-1].image == folder / "more" / "b.raw"
    assert table[-1].settings == {"datasource": "ec2", "firmware": "bios"}
    choice = table[-1].template
    assert choice.parameters == {"port": 80, "when": "2026-01-01"}
    assert choice.environments == (folder / "lab.yaml",)
    loaded = choice.load()
    assert loaded.expect_status == "CREATE_FAILED"
    assert loaded.expect({"port": "81"}) == ['output "port" is "81"; expected "80"']


def test_cpu_is_any_word_and_several_are_cases_of_their_own(folder):
    """QEMU alone knows its models; they have features after commas."""
    text = 'images: web.raw\ntemplates: small.yaml\ncpu: [x86-64-v1, "Nehalem,-popcnt"]\n'
    table = cases_in(folder, text)
    assert [each.name for each in table] == ["web.raw x86-64-v1", "web.raw Nehalem,-popcnt"]
    assert table[1].settings_from(Settings()).cpu == "Nehalem,-popcnt"
    given = cases_in(folder, text, "--cpu", "max", "--cpu", "qemu64,+avx")
    assert [each.settings["cpu"] for each in given] == ["max", "qemu64,+avx"]


def test_command_line_overrides_the_run_file(folder):
    other = folder / "other.yaml"
    other.write_text(TEMPLATE)
    words = (str(folder / "web.raw"), "-t", str(other), "--datasource", "nocloud", "-P", "a=b")
    (case,) = cases_in(folder, WHOLE, *words)
    assert (case.template.path, case.template.parameters) == (other, {"a": "b"})
    assert case.settings["datasource"] == "nocloud"


def test_network_data_of_the_run_file_is_the_clouds(folder):
    text = '{"%s": {"links": [{"id": "a", "type": "phy"}], "networks": []}}'
    (folder / "file.json").write_text(text % "web")
    (folder / "given.json").write_text(text % "db")
    matrix = folder / "matrix.yaml"
    matrix.write_text("images: web.raw\nnetwork_data: file.json\n")
    assert [*requested("-f", str(matrix)).cloud.own_network_data] == ["web"]
    given = ("--network-data", str(folder / "given.json"))
    assert [*requested("-f", str(matrix), *given).cloud.own_network_data] == ["db"]
    with pytest.raises(UsageError, match="is for machines of this host"):
        requested("-f", str(matrix), "--os-cloud", "far")


WRONG = [
    ("image: [web.raw]", 'line 1 of "{file}": "image" is not known; did you mean "images"?'),
    ("\n\nimages: web.raw\nfoo: 1", 'line 4 of "{file}": "foo" is not known'),
    ("images: web.raw\nimages: web.raw", 'line 2 of "{file}": "images" is there twice'),
    ("images: [web.raw,\n gone.raw]", 'line 2 of "{file}": there is no image'),
    ("images: ['*.qcow']", 'line 1 of "{file}": no image matches "*.qcow"'),
    ("images: []", 'line 1 of "{file}": "images" is empty'),
    ("images: web.raw\ndatasource: [ec3]", 'line 2 of "{file}": "ec3" is not known; did you mean'),
    ("images: web.raw\nnetwork_data: gone.json", 'line 2 of "{file}": the file '),
    ("images: web.raw\ntemplates: gone.yaml", 'line 2 of "{file}": the file '),
    (
        "images: web.raw\ntemplates:\n- template: small.yaml\n  parameter: {}",
        'line 4 of "{file}": "parameter" is not known; did you mean "parameters"?',
    ),
    ("images: web.raw\ntemplates:\n- name: x", 'line 3 of "{file}": a template has no "template"'),
    (
        "images: web.raw\ntemplates:\n- template: small.yaml\n  expect: {colour: red}",
        'line 4 of "{file}": "expect.colour" in "{file}" is not known',
    ),
    (
        "images: web.raw\ntemplates:\n- template: small.yaml\n  parameters: [a]",
        'line 4 of "{file}": "parameters" is no map',
    ),
    ("- web.raw", 'line 1 of "{file}": the run file is no map'),
    ("images: {a: b}", 'line 1 of "{file}": expected the name of an image'),
    ("", 'the run file "{file}" is empty'),
    ("firmware: bios", 'the run file "{file}" names no image'),
    ("images: [", 'the run file "{file}" cannot be read: '),
]


@pytest.mark.parametrize(("text", "problem"), WRONG)
def test_run_file_error_has_its_line(folder, text, problem):
    with pytest.raises(UsageError) as caught:
        cases_in(folder, text)
    assert caught.value.message.startswith(problem.format(file=folder / "matrix.yaml"))


def test_missing_run_file_is_refused():
    with pytest.raises(UsageError, match="cannot be read"):
        run_file.read(Path("/gone.yaml"))


def test_command_runs_a_run_file(tmp_path):
    played = Played(tmp_path)
    images = played.images(good="pass", bad="fail")
    (tmp_path / "matrix.yaml").write_text(f"images: [{images[0]}, {images[1]}]\n")
    done = played.run("-f", "matrix.yaml", "-j", "1", "--json", "v.json")
    assert done.returncode == 1
    assert [each["outcome"] for each in played.verdicts().values()] == ["passed", "failed"]
    gone = played.run("-f", "gone.yaml")
    assert (gone.returncode, gone.stderr) == (
        2,
        'hotplate test: the file "gone.yaml" does not exist or is not a file\n',
    )
