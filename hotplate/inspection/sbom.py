"""A bill of materials of an image, in CycloneDX and in SPDX.

Sources: the CycloneDX specification 1.6; the SPDX specification 2.3; the package URL types ``deb``,
``rpm`` and ``pypi`` (package-url/purl-spec).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hotplate import __version__
from hotplate.errors import HostError, ImageError
from hotplate.image.manifest import stem_of
from hotplate.inspection.contents import Contents
from hotplate.inspection.inspection import Inspection, inspected
from hotplate.text import clean_line

if TYPE_CHECKING:
    from cyclonedx.model import HashType, Property
    from cyclonedx.model.bom import Bom
    from cyclonedx.model.component import Component


#: Suffixes of the files beside an image, by which tools recognize a bill in CycloneDX and in SPDX.
SUFFIXES = (".cdx.json", ".spdx.json")

#: The value for "this is not said" (SPDX 2.3, 7.7).
NOASSERTION = "NOASSERTION"


def leave_beside(image: Path, *, checksums: Path | None = None) -> tuple[Path, ...]:
    """Write the bills of materials of an image beside it, as ``NAME.cdx.json``, ``NAME.spdx.json``.

    The bills of an earlier image of that name are removed in any case.

    :param checksums: see :func:`~hotplate.image.checksum.sha256_of`.
    :raises ImageError: the root file system cannot be read here.
    :raises HostError: the file cannot be written.
    """
    stem = stem_of(image)
    files = tuple(stem.with_name(f"{stem.name}{suffix}") for suffix in SUFFIXES)
    temporary = [file.with_name(f".{file.name}.{os.getpid()}") for file in files]
    try:
        for file in files:
            file.unlink(missing_ok=True)
        with inspected(image, checksums=checksums) as inspection:
            if inspection.contents is None:
                raise ImageError(inspection.unread)
            for write, bill in zip((as_cyclonedx, as_spdx), temporary, strict=True):
                bill.write_text(write(inspection, inspection.contents), encoding="utf-8")
        for bill, file in zip(temporary, files, strict=True):
            bill.replace(file)
    except OSError as error:
        raise HostError(
            f'the bills of materials of "{image}" cannot be written: {error.strerror}'
        ) from error
    finally:
        for bill in temporary:
            bill.unlink(missing_ok=True)
    return files


def as_cyclonedx(inspection: Inspection, contents: Contents) -> str:
    """Return the packages, Python distributions, elements and hooks of an image, as JSON.

    The hash of the image's file is included when its own manifest has it, and the property
    ``hotplate:packages-not-read`` when its packages are not read.
    """
    from cyclonedx.output.json import JsonV1Dot6

    text: str = JsonV1Dot6(_bill(inspection, contents)).output_as_string(indent=2)
    return text


def as_spdx(inspection: Inspection, contents: Contents) -> str:
    """Return the same as :func:`as_cyclonedx` as a document of SPDX 2.3, as JSON.

    Properties are in the comments of its packages, and that of the image in the document's.
    """
    bill = _bill(inspection, contents)
    image = bill.metadata.component
    assert image is not None
    packages = [_spdx_package("SPDXRef-image", image)]
    packages += [
        _spdx_package(f"SPDXRef-{number}", each) for number, each in enumerate(bill.components, 1)
    ]
    document = {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": clean_line(inspection.file.path.name),
        # Only a name, which has to be another in each document (6.5).
        "documentNamespace": f"urn:uuid:{bill.serial_number}",
        "creationInfo": {
            "created": f"{bill.metadata.timestamp:%Y-%m-%dT%H:%M:%SZ}",
            "creators": [f"Tool: hotplate-{__version__}"],
        },
        **_spdx_comment(bill.metadata.properties),
        "packages": packages,
        "relationships": [
            {
                "spdxElementId": source,
                "relationshipType": kind,
                "relatedSpdxElement": package["SPDXID"],
            }
            for source, kind, package in (
                ("SPDXRef-DOCUMENT", "DESCRIBES", packages[0]),
                *(("SPDXRef-image", "CONTAINS", each) for each in packages[1:]),
            )
        ],
    }
    return json.dumps(document, indent=2)


def _spdx_package(identity: str, component: Component) -> dict[str, Any]:
    """Return a component as a package (SPDX 2.3, 7)."""
    package: dict[str, Any] = {
        "SPDXID": identity,
        "name": component.name,
        "downloadLocation": NOASSERTION,
        "filesAnalyzed": False,
        # CycloneDX has the same words for the kinds that are here.
        "primaryPackagePurpose": component.type.name.replace("_", "-"),
        **_spdx_comment(component.properties),
    }
    if component.version:
        package["versionInfo"] = component.version
    if component.description:
        package["packageFileName"] = component.description
    if component.hashes:
        package["checksums"] = [
            {"algorithm": "SHA256", "checksumValue": each.content} for each in component.hashes
        ]
    if component.purl:
        package["externalRefs"] = [
            {
                "referenceCategory": "PACKAGE-MANAGER",
                "referenceType": "purl",
                "referenceLocator": str(component.purl),
            }
        ]
    return package


def _spdx_comment(properties: Iterable[Property]) -> dict[str, str]:
    text = "\n".join(f"{each.name}: {each.value}" for each in properties)
    return {"comment": text} if text else {}


def _bill(inspection: Inspection, contents: Contents) -> Bom:
    from cyclonedx.model import Property
    from cyclonedx.model.bom import Bom
    from cyclonedx.model.component import Component, ComponentType

    bom = Bom()
    bom.metadata.component = Component(
        type=ComponentType.OPERATING_SYSTEM,
        bom_ref="image",
        name=clean_line(contents.distribution or inspection.file.path.name),
        version=clean_line(contents.release.get("VERSION_ID", "")) or None,
        description=inspection.file.path.name,
        # It was compared with the file's, or the manifest would not be used.
        hashes=_hashes(inspection.built.get("sha256", "")),
    )
    if contents.packages.not_read:
        missing = Property(name="hotplate:packages-not-read", value=contents.packages.not_read)
        bom.metadata.properties.add(missing)
    components = [*_packages(contents), *_elements(inspection), *_hooks(contents)]
    bom.components.update(components)
    bom.register_dependency(bom.metadata.component, components)
    return bom


def _packages(contents: Contents) -> Iterator[Component]:
    from cyclonedx.model.component import Component, ComponentType
    from packageurl import PackageURL

    kind = "rpm" if contents.packages.rpm else "deb"
    vendor = clean_line(contents.release.get("ID", "")) or "debian"
    distro = f"{vendor}-{clean_line(contents.release.get('VERSION_ID', ''))}".rstrip("-")
    for package in contents.packages.installed.values():
        name, version = clean_line(package.name), clean_line(package.version)
        qualifiers = {"arch": clean_line(package.arch), "distro": distro}
        if package.epoch:
            qualifiers["epoch"] = clean_line(package.epoch)
        url = PackageURL(kind, vendor, name, version, qualifiers)
        yield Component(
            type=ComponentType.LIBRARY, bom_ref=str(url), name=name, version=version, purl=url
        )
    for package in contents.packages.python:
        name, version = clean_line(package.name), clean_line(package.version)
        url = PackageURL("pypi", None, name.lower(), version)
        # The same package may be in two virtual environments.
        reference = f"{url}#{clean_line(package.place)}"
        yield Component(
            type=ComponentType.LIBRARY, bom_ref=reference, name=name, version=version, purl=url
        )


def _elements(inspection: Inspection) -> Iterator[Component]:
    """Yield the elements, with the hash and the commit of each in the manifest."""
    digests, commits = (_texts(inspection.built.get(key)) for key in ("elements", "commits"))
    for name in inspection.elements:
        yield _application("element", name, digests.get(name, ""), commit=commits.get(name, ""))


def _texts(document: object) -> dict[str, str]:
    """Return the texts of a part of the manifest, which may come from a stranger."""
    if not isinstance(document, dict):
        return {}
    return {name: clean_line(text) for name, text in document.items() if isinstance(text, str)}


def _hooks(contents: Contents) -> Iterator[Component]:
    for hook in contents.hooks:
        digest = hashlib.sha256(contents.tree.read(hook.path)).hexdigest()
        yield _application("hook", hook.group, digest, path=clean_line(hook.path))


def _application(kind: str, name: str, digest: str, **more: str) -> Component:
    """Return an element or a hook.

    :param digest: its SHA-256, "" when it is unknown.
    :param more: further properties by name, "" for none.
    """
    from cyclonedx.model import Property
    from cyclonedx.model.component import Component, ComponentType

    properties = {"kind": kind, **more}
    return Component(
        type=ComponentType.APPLICATION,
        bom_ref=f"{kind}:{clean_line(name)}",
        name=clean_line(name),
        hashes=_hashes(digest),
        properties=[
            Property(name=f"hotplate:{key}", value=text) for key, text in properties.items() if text
        ],
    )


def _hashes(digest: str) -> list[HashType]:
    from cyclonedx.model import HashAlgorithm, HashType

    return [HashType(alg=HashAlgorithm.SHA_256, content=digest)] if digest else []
