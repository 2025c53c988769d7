"""The table of cases of a command line, and the artifacts of each."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
import tiny_disk
from hotplate_command import hotplate
from played_cases import cases_of, requested

from hotplate.cases.last import LastCases
from hotplate.cases.results import ResultSink
from hotplate.cases.run import chosen
from hotplate.errors import Outcome, UsageError
from hotplate.verdict.verdict import Subject, Verdict

REFUSED = """
heat_template_version: 2018-08-31
parameters: {size: {type: string, default: "1"}}
resources: {it: {type: "OS::No::Such::Thing"}}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("web.raw", "db.raw"):
        tiny_disk.make(tmp_path / name)
    (tmp_path / "refused.yaml").write_text(REFUSED)
    (tmp_path / "broken.yaml").write_text("resources: [")
    return tmp_path


def test_single_case_is_named_after_its_image(folder):
    (case,) = cases_of("web.raw", "--datasource", "ec2")
    assert (case.name, case.settings) == ("web.raw", {"datasource": "ec2"})
    assert case.image == folder / "web.raw"


def test_cases_are_the_product_of_the_named_items(folder):
    words = ("-t", "refused.yaml", "-t", "broken.yaml", "--datasource", "ec2,nocloud")
    table = cases_of("web.raw", "db.raw", *words, "--firmware", "bios")
    assert len({each.name for each in table}) == len(table) == 8
    assert table[0].name == "web.raw refused.yaml ec2"
    assert table[-1].name == "db.raw broken.yaml nocloud"
    assert all(each.settings["firmware"] == "bios" for each in table)


def test_settings_of_a_case_apply_to_its_run(folder):
    common = requested("web.raw").settings
    cases = cases_of("web.raw", "--datasource", "ec2,nocloud")
    chosen = [each.settings_from(common).datasource.value for each in cases]
    assert chosen == ["ec2", "nocloud"]


def test_files_of_one_name_get_different_labels(folder):
    for name in ("a", "b"):
        (folder / name).mkdir()
        tiny_disk.make(folder / name / "web.raw")
    names = [each.name for each in cases_of("a/web.raw", "b/web.raw", "db.raw", "db.raw")]
    assert names == [
        f"{folder}/a/web.raw",
        f"{folder}/b/web.raw",
        f"{folder}/db.raw",
        f"{folder}/db.raw (2)",
    ]


def test_unknown_data_source_is_refused(folder, capsys):
    with pytest.raises(SystemExit):
        cases_of("web.raw", "--datasource", "ec2,nocluod")
    assert 'invalid choice: "nocluod" (choose from openstack, ec2' in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("gone.raw",), 'no image "gone.raw"'),
        (("web.raw", "-t", "refused.yaml", "-t", "gone.yaml"), '"gone.yaml"'),
        (("web.raw", "-P", "a=b"), "need a template"),
    ],
)
def test_missing_file_is_refused_before_the_run(folder, words, problem):
    with pytest.raises(UsageError, match=problem):
        cases_of(*words)


def test_each_case_is_in_one_shard(folder, monkeypatch):
    words = ("web.raw", "db.raw", "--datasource", "ec2,nocloud", "--firmware", "bios,uefi")
    table = cases_of(*words)
    parts = []
    for part in (1, 2):
        request = requested(*words, "--shard", f"hash:{part}/2")
        parts.append(chosen(request, table, LastCases(folder)))
    assert all(parts)
    assert sorted(each.name for part in parts for each in part) == sorted(
        each.name for each in table
    )


def test_results_so_far_are_written_after_each_case(folder):
    """Of many cases all but a tenth, as each writing has all of them."""
    words = ["web.raw", "db.raw", "-t", "refused.yaml", "-t", "broken.yaml"]
    words += ["--datasource", "openstack,ec2,nocloud", "--firmware", "bios,uefi"]
    cases = cases_of(*words)
    results = ResultSink(
        requested(*words, "--json", "v.json"),
        cases,
        last=LastCases(folder),
        several=True,
        board=None,
        lines=None,
    )
    missing = []
    for number, case in enumerate(cases, start=1):
        verdict = Verdict(Subject(case.name), Outcome.PASSED, "CREATE_COMPLETE", (), ())
        results.record(case, verdict, None)
        missing.append(number - len(json.loads((folder / "v.json").read_text())))
    assert len(missing) == 24
    assert missing[:10] == [0] * 10
    assert 0 < max(missing) <= 2


@pytest.mark.slow
@pytest.mark.tool("qemu-img")
def test_each_case_has_its_own_folder_and_verdict(folder):
    files = ["-t", "refused.yaml", "-t", "broken.yaml", "--json", "v.json", "--junit", "j.xml"]
    done = hotplate("test", "web.raw", "-j", "1", "--datasource", "ec2,nocloud", *files)
    assert done.returncode == 1, done.stderr
    names = [
        f"web.raw {file}.yaml {each}"
        for file in ("refused", "broken")
        for each in ("ec2", "nocloud")
    ]
    verdicts = json.loads((folder / "v.json").read_text())
    assert [each["case"] for each in verdicts] == names
    for each in verdicts:
        left = json.loads((Path(each["artifacts"]) / "verdict.json").read_text())
        assert left == each
        assert (Path(each["artifacts"]) / "report.html").exists()
    assert len({each["artifacts"] for each in verdicts}) == 4
    suites = ET.parse(folder / "j.xml").getroot().findall("testsuite")
    assert [each.get("name") for each in suites] == [f"hotplate {name}" for name in names]
    page = (folder / "artifacts" / "matrix.html").read_text()
    assert all(name in page for name in names)
    last = done.stdout.splitlines()[-1]
    assert last == f"0 of 4 cases passed; all of them: {folder}/artifacts/matrix.html"
