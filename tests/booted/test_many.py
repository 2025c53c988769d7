"""A table of cases in booted guests, two at a time."""

from __future__ import annotations

import json
import os
import shutil
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
import yaml

pytestmark = [
    pytest.mark.boots,
    pytest.mark.builds,
    pytest.mark.root,
    pytest.mark.network,
    pytest.mark.long,
    pytest.mark.usefixtures("nothing_left"),
]

RUN_SECONDS = 1500
TEMPLATES = Path(__file__).parent / "templates"


def test_two_images_and_two_templates_run_side_by_side(
    hotplate, seeds, trixie, without_cloud_init, tmp_path
):
    chosen = [
        str(TEMPLATES / "no-signal.yaml"),
        str(seeds / "one-template-sample" / "template.yaml"),
    ]
    pair = (trixie, without_cloud_init)
    run_file = {"images": [str(each) for each in pair], "templates": chosen}
    (tmp_path / "matrix.yaml").write_text(yaml.safe_dump(run_file))
    base, verdicts, junit = (tmp_path / name for name in ("artifacts", "v.json", "j.xml"))
    files = ("--artifacts", base, "--json", verdicts, "--junit", junit)
    done = hotplate("test", "-f", tmp_path / "matrix.yaml", "-j", "2", *files)
    assert done.status == 0, done
    assert done.last_line == f"4 of 4 cases passed; all of them: {base}/matrix.html"
    listed = json.loads(verdicts.read_text())
    assert [each["outcome"] for each in listed] == ["passed"] * 4
    assert len({each["case"] for each in listed}) == 4
    servers = [server for each in listed for server in each["servers"]]
    assert all(stage["seconds"] is not None for each in servers for stage in each["stages"])
    assert all(each["missing"] is None for server in servers for each in server["deployments"])
    assert {(each["image"], each["template"]) for each in listed} == {
        (str(image), template) for image in pair for template in chosen
    }
    suites = ET.parse(junit).getroot().findall("testsuite")
    assert [each.get("errors") + each.get("failures") for each in suites] == ["00"] * 4


def test_release_is_built_booted_and_kept(hotplate, tmp_path):
    """tests/cases/test_releases.py has several releases, whose builds are played."""
    # A build variable gives this test its own image, from the host's downloads.  It is not a
    # path, because the files at a path would count as part of the image.
    own = {**os.environ, "DIB_HOTPLATE_TEST": f"of {tmp_path}"}
    verdicts = tmp_path / "v.json"
    words = ("test", "--release", "trixie", "--json", verdicts)
    words += ("--artifacts", tmp_path / "artifacts", "-t")
    # Fails without a boot: only the image matters from here on.
    without_server = tmp_path / "without-server.yaml"
    without_server.write_text(
        "heat_template_version: wallaby\n"
        "resources: {value: {type: OS::Heat::Value, properties: {value: one}}}\n"
    )
    folders: set[Path] = set()
    try:
        for number, template in enumerate((TEMPLATES / "user-data-only.yaml", without_server)):
            done = hotplate(*words, template, environment=own, timeout=2 * RUN_SECONDS)
            assert done.status == number, done
            image = Path(json.loads(verdicts.read_text())["image"])
            folders.add(image.parents[1])
            assert image.name == "trixie.qcow2"
            assert ("building an image of trixie (script)" in done.stdout) == (number == 0)
            manifest = json.loads(image.with_suffix(".manifest.json").read_text())
            assert manifest["release"] == "trixie"
        assert len(folders) == 1
    finally:
        for each in folders:
            shutil.rmtree(each)


def test_passing_cases_pass_side_by_side_again(hotplate, trixie, without_cloud_init, tmp_path):
    words = ("test", trixie, without_cloud_init, "--retry-lost", "0")
    alone = hotplate(*words, "-j", "1", "--artifacts", tmp_path / "alone")
    assert alone.status == 0, alone
    pair = hotplate(*words, "-j", "2", "--artifacts", tmp_path / "pair")
    assert pair.status == 0, pair
