"""The bill of materials holds to the schema, and has all that is in an image."""

from __future__ import annotations

import hashlib
import json
import sys

import pytest

from hotplate.errors import HostError
from hotplate.inspection.inspection import inspected
from hotplate.inspection.sbom import as_cyclonedx


def bill_of(path) -> str:
    with inspected(path) as inspection:
        assert inspection.contents is not None
        return as_cyclonedx(inspection, inspection.contents)


def test_it_has_packages_distributions_elements_and_hooks(good, write, make_disk):
    validation = pytest.importorskip("cyclonedx.validation.json")
    schema = pytest.importorskip("cyclonedx.schema")
    for venv in ("one", "two"):
        write(good, f"opt/{venv}/pyvenv.cfg")
        write(good, f"opt/{venv}/lib/python3.13/site-packages/Some_Thing-1.2.dist-info/RECORD")
    path = make_disk(good)
    document = {
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "elements": {"heat-config-script": "ab" * 32},
    }
    path.with_name("web.manifest.json").write_text(json.dumps(document))
    text = bill_of(path)
    assert validation.JsonStrictValidator(schema.SchemaVersion.V1_6).validate_str(text) is None
    components = {each["bom-ref"]: each for each in json.loads(text)["components"]}
    assert sorted(components) == [
        "element:heat-config-script",
        "hook:puppet",
        "hook:script",
        "pkg:deb/debian/dpkg@1.21.23?arch=amd64&distro=debian-12",
        "pkg:deb/debian/puppet-agent@8.10.0-5?arch=all&distro=debian-12",
        "pkg:pypi/some-thing@1.2#/opt/one/lib/python3.13/site-packages",
        "pkg:pypi/some-thing@1.2#/opt/two/lib/python3.13/site-packages",
    ]
    assert components["element:heat-config-script"]["hashes"] == [
        {"alg": "SHA-256", "content": "ab" * 32}
    ]
    hook = hashlib.sha256(b"#!/bin/sh\n").hexdigest()
    assert components["hook:script"]["hashes"][0]["content"] == hook


def test_without_the_library_it_says_what_to_install(good, make_disk, monkeypatch):
    monkeypatch.setitem(sys.modules, "cyclonedx.model.bom", None)
    with pytest.raises(HostError, match="cyclonedx-python-lib") as raised:
        bill_of(make_disk(good))
    assert raised.value.hint == "pip install 'hotplate[sbom]'"
