"""A table of cases in booted guests, two at a time."""

from __future__ import annotations

import json
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

TEMPLATES = Path(__file__).parent / "templates"


def test_two_images_with_two_templates_side_by_side(hotplate, bookworm, trixie, tmp_path):
    chosen = [str(TEMPLATES / name) for name in ("user-data-only.yaml", "no-signal.yaml")]
    run_file = {"images": [str(bookworm), str(trixie)], "templates": chosen}
    (tmp_path / "matrix.yaml").write_text(yaml.safe_dump(run_file))
    base, verdicts, junit = (tmp_path / name for name in ("artifacts", "v.json", "j.xml"))
    files = ("--artifacts", base, "--json", verdicts, "--junit", junit)
    done = hotplate("test", "-f", tmp_path / "matrix.yaml", "-j", "2", *files)
    assert done.status == 0, done
    assert done.last_line == f"4 of 4 cases passed; all of them: {base}/matrix.html"
    listed = json.loads(verdicts.read_text())
    assert [each["outcome"] for each in listed] == ["passed"] * 4
    assert len({each["case"] for each in listed}) == 4
    assert {(each["image"], each["template"]) for each in listed} == {
        (str(image), template) for image in (bookworm, trixie) for template in chosen
    }
    suites = ET.parse(junit).getroot().findall("testsuite")
    assert [each.get("errors") + each.get("failures") for each in suites] == ["00"] * 4


@pytest.mark.alone
def test_what_passes_alone_passes_side_by_side_ten_times(hotplate, bookworm, tmp_path):
    words = ("test", bookworm, "--datasource", "openstack,ec2", "--retry-lost", "0")
    alone = hotplate(*words, "-j", "1", "--artifacts", tmp_path / "alone")
    assert alone.status == 0, alone
    for number in range(10):
        done = hotplate(*words, "-j", "2", "--artifacts", tmp_path / str(number))
        assert done.status == 0, done
