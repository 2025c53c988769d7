"""The bills of materials follow their specifications, and list the whole image."""

from __future__ import annotations

import hashlib
import json
import re

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from hotplate.errors import ImageError
from hotplate.inspection.inspection import inspected
from hotplate.inspection.sbom import as_cyclonedx, as_spdx, leave_beside


def bill_of(path, write=as_cyclonedx) -> str:
    with inspected(path) as inspection:
        assert inspection.contents is not None
        return write(inspection, inspection.contents)


def test_bill_lists_packages_distributions_elements_and_hooks(good, write, make_disk):
    for venv in ("one", "two"):
        write(good, f"opt/{venv}/pyvenv.cfg")
        write(good, f"opt/{venv}/lib/python3.13/site-packages/Some_Thing-1.2.dist-info/RECORD")
    path = make_disk(good)
    document = {
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "elements": {"heat-config-script": "ab" * 32},
        "commits": {"heat-config-script": "cd" * 20},
    }
    path.with_name("web.manifest.json").write_text(json.dumps(document))
    text = bill_of(path)
    image = json.loads(text)["metadata"]["component"]
    assert image["hashes"] == [{"alg": "SHA-256", "content": document["sha256"]}]
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
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
    properties = components["element:heat-config-script"]["properties"]
    assert {"name": "hotplate:commit", "value": "cd" * 20} in properties
    hook = hashlib.sha256(b"#!/bin/sh\n").hexdigest()
    assert components["hook:script"]["hashes"][0]["content"] == hook


@pytest.mark.parametrize(
    ("manager", "database"),
    [
        ("rpm", "var/lib/rpm/rpmdb.sqlite"),
        ("apk", "lib/apk/db/installed"),
        ("pacman", "var/lib/pacman/local/ALPM_DB_VERSION"),
    ],
)
def test_unread_packages_are_named(good, write, make_disk, manager, database):
    (good / "var/lib/dpkg/status").unlink()
    write(good, database)
    text = bill_of(make_disk(good))
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    (missing,) = json.loads(text)["metadata"]["properties"]
    assert missing["name"] == "hotplate:packages-not-read"
    assert f"the packages are {manager}'s, whose database is" in missing["value"]


# What the JSON schema of SPDX 2.3 requires, and the words of 7.7, 7.10, 7.21 and 7.24 for the rest.
SPDX_DOCUMENT = {
    *("SPDXID", "creationInfo", "dataLicense", "documentNamespace", "name", "packages"),
    *("relationships", "spdxVersion"),
}
SPDX_PACKAGE = {"SPDXID", "downloadLocation", "filesAnalyzed", "name", "primaryPackagePurpose"}
SPDX_OPTIONAL = {"checksums", "comment", "externalRefs", "packageFileName", "versionInfo"}


def test_spdx_bill_has_the_same_components(good, make_disk):
    path = make_disk(good)
    document = {
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "elements": {"heat-config-script": "ab" * 32},
        "commits": {"heat-config-script": "cd" * 20},
    }
    path.with_name("web.manifest.json").write_text(json.dumps(document))
    bill, other = json.loads(bill_of(path, as_spdx)), json.loads(bill_of(path))
    assert bill.keys() == SPDX_DOCUMENT
    assert (bill["spdxVersion"], bill["dataLicense"]) == ("SPDX-2.3", "CC0-1.0")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:]{8}Z", bill["creationInfo"]["created"])
    assert re.fullmatch(r"urn:uuid:[0-9a-f-]{36}", bill["documentNamespace"])
    packages = {each["SPDXID"]: each for each in bill["packages"]}
    assert len(packages) == len(bill["packages"])
    for identity, package in packages.items():
        assert re.fullmatch(r"SPDXRef-[A-Za-z0-9.-]+", identity)
        assert package.keys() >= SPDX_PACKAGE
        assert package.keys() <= SPDX_PACKAGE | SPDX_OPTIONAL
    image = packages.pop("SPDXRef-image")
    assert image["checksums"] == [{"algorithm": "SHA256", "checksumValue": document["sha256"]}]
    assert image["packageFileName"] == path.name
    assert image["primaryPackagePurpose"] == "OPERATING-SYSTEM"
    related = [
        (each["spdxElementId"], each["relationshipType"], each["relatedSpdxElement"])
        for each in bill["relationships"]
    ]
    assert related == [
        ("SPDXRef-DOCUMENT", "DESCRIBES", "SPDXRef-image"),
        *(("SPDXRef-image", "CONTAINS", identity) for identity in packages),
    ]

    assert sorted(
        (
            each["name"],
            each.get("versionInfo", ""),
            each.get("externalRefs", [{"referenceLocator": ""}])[0]["referenceLocator"],
            each.get("checksums", [{"checksumValue": ""}])[0]["checksumValue"],
        )
        for each in packages.values()
    ) == sorted(
        (
            each["name"],
            each.get("version", ""),
            each.get("purl", ""),
            each.get("hashes", [{"content": ""}])[0]["content"],
        )
        for each in other["components"]
    )
    (element,) = (each for each in packages.values() if each["name"] == "heat-config-script")
    assert element["comment"] == f"hotplate:commit: {'cd' * 20}\nhotplate:kind: element"


def test_bills_replace_earlier_ones_beside_the_image(good, make_disk, tmp_path):
    path = make_disk(good)
    beside = tmp_path / "web.cdx.json", tmp_path / "web.spdx.json"
    for file in beside:
        file.write_text("of an earlier image")
    assert leave_beside(path) == beside
    for file, key in zip(beside, ("components", "packages"), strict=True):
        names = {each["name"] for each in json.loads(file.read_text())[key]}
        assert names >= {"dpkg", "puppet", "puppet-agent", "script"}
    assert not list(tmp_path.glob(".web*"))


def test_unreadable_image_has_no_bill(tmp_path):
    (tmp_path / "web.raw").write_bytes(b"XFSB" + bytes(1 << 20))
    for suffix in ("cdx", "spdx"):
        (tmp_path / f"web.{suffix}.json").write_text("of an earlier image")
    with pytest.raises(ImageError, match="xfs"):
        leave_beside(tmp_path / "web.raw")
    assert [each.name for each in tmp_path.iterdir()] == ["web.raw"]
