"""A bill of materials of an image, in CycloneDX.

Sources: the CycloneDX specification 1.6; the package URL types ``deb`` and ``pypi``
(package-url/purl-spec).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from hotplate.errors import HostError
from hotplate.inspection.contents import Contents
from hotplate.inspection.inspection import Inspection
from hotplate.text import clean_line

if TYPE_CHECKING:
    from cyclonedx.model.component import Component


def as_cyclonedx(inspection: Inspection, contents: Contents) -> str:
    """Return the packages, Python distributions, elements and hooks of an image, as JSON.

    :raises HostError: the library that writes it is not installed.
    """
    try:
        from cyclonedx.model.bom import Bom
        from cyclonedx.model.component import Component, ComponentType
        from cyclonedx.output.json import JsonV1Dot6
    except ImportError as error:
        raise HostError(
            "a bill of materials is written by the package cyclonedx-python-lib, which is not "
            "installed",
            hint="pip install 'hotplate[sbom]'",
        ) from error
    bom = Bom()
    bom.metadata.component = Component(
        type=ComponentType.OPERATING_SYSTEM,
        bom_ref="image",
        name=clean_line(contents.distribution or inspection.file.path.name),
        version=clean_line(contents.release.get("VERSION_ID", "")) or None,
        description=inspection.file.path.name,
    )
    components = [*_packages(contents), *_elements(inspection), *_hooks(contents)]
    bom.components.update(components)
    bom.register_dependency(bom.metadata.component, components)
    text: str = JsonV1Dot6(bom).output_as_string(indent=2)
    return text


def _packages(contents: Contents) -> Iterator[Component]:
    from cyclonedx.model.component import Component, ComponentType
    from packageurl import PackageURL

    vendor = clean_line(contents.release.get("ID", "")) or "debian"
    distro = f"{vendor}-{clean_line(contents.release.get('VERSION_ID', ''))}".rstrip("-")
    for package in contents.packages.debian.values():
        name, version = clean_line(package.name), clean_line(package.version)
        qualifiers = {"arch": clean_line(package.arch), "distro": distro}
        url = PackageURL("deb", vendor, name, version, qualifiers)
        yield Component(
            type=ComponentType.LIBRARY, bom_ref=str(url), name=name, version=version, purl=url
        )
    for package in contents.packages.python:
        name, version = clean_line(package.name), clean_line(package.version)
        url = PackageURL("pypi", None, name.lower(), version)
        # The same may be in two virtual environments.
        reference = f"{url}#{clean_line(package.place)}"
        yield Component(
            type=ComponentType.LIBRARY, bom_ref=reference, name=name, version=version, purl=url
        )


def _elements(inspection: Inspection) -> Iterator[Component]:
    """Yield the elements, with the hash of their files where the manifest has it."""
    from cyclonedx.model import HashAlgorithm, HashType, Property
    from cyclonedx.model.component import Component, ComponentType

    digests = inspection.built.get("elements")
    for name in inspection.elements:
        digest = str(digests.get(name, "")) if isinstance(digests, dict) else ""
        yield Component(
            type=ComponentType.APPLICATION,
            bom_ref=f"element:{clean_line(name)}",
            name=clean_line(name),
            hashes=[HashType(alg=HashAlgorithm.SHA_256, content=digest)] if digest else [],
            properties=[Property(name="hotplate:kind", value="element")],
        )


def _hooks(contents: Contents) -> Iterator[Component]:
    from cyclonedx.model import HashAlgorithm, HashType, Property
    from cyclonedx.model.component import Component, ComponentType

    for hook in contents.hooks:
        digest = hashlib.sha256(contents.tree.read(hook.path)).hexdigest()
        yield Component(
            type=ComponentType.APPLICATION,
            bom_ref=f"hook:{clean_line(hook.group)}",
            name=clean_line(hook.group),
            hashes=[HashType(alg=HashAlgorithm.SHA_256, content=digest)],
            properties=[
                Property(name="hotplate:kind", value="hook"),
                Property(name="hotplate:path", value=clean_line(hook.path)),
            ],
        )
