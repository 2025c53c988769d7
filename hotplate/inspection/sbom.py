"""A bill of materials of an image, in CycloneDX.

Sources: the CycloneDX specification 1.6; the package URL types ``deb``, ``rpm`` and ``pypi``
(package-url/purl-spec).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from hotplate.errors import HostError, ImageError
from hotplate.image.manifest import stem_of
from hotplate.inspection.contents import Contents
from hotplate.inspection.inspection import Inspection, inspected
from hotplate.text import clean_line

if TYPE_CHECKING:
    from cyclonedx.model.component import Component


#: Suffix of the file beside an image, by which tools recognize a bill in CycloneDX.
SUFFIX = ".cdx.json"


def leave_beside(image: Path, *, checksums: Path | None = None) -> Path:
    """Write the bill of materials of an image beside it, as ``NAME.cdx.json``.

    The bill of an earlier image of that name is removed in any case.

    :param checksums: see :func:`~hotplate.image.checksum.sha256_of`.
    :raises ImageError: the root file system cannot be read here.
    :raises HostError: the file cannot be written.
    """
    stem = stem_of(image)
    file = stem.with_name(f"{stem.name}{SUFFIX}")
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        file.unlink(missing_ok=True)
        with inspected(image, checksums=checksums) as inspection:
            if inspection.contents is None:
                raise ImageError(inspection.unread)
            temporary.write_text(as_cyclonedx(inspection, inspection.contents), encoding="utf-8")
        temporary.replace(file)
    except OSError as error:
        raise HostError(f'"{file}" cannot be written: {error.strerror}') from error
    finally:
        temporary.unlink(missing_ok=True)
    return file


def as_cyclonedx(inspection: Inspection, contents: Contents) -> str:
    """Return the packages, Python distributions, elements and hooks of an image, as JSON.

    The hash of the image's file is included when its own manifest has it, and the property
    ``hotplate:packages-not-read`` when its packages are not read.
    """
    from cyclonedx.model import HashAlgorithm, HashType, Property
    from cyclonedx.model.bom import Bom
    from cyclonedx.model.component import Component, ComponentType
    from cyclonedx.output.json import JsonV1Dot6

    # It was compared with the file's, or the manifest would not be used.
    digest = inspection.built.get("sha256")
    bom = Bom()
    bom.metadata.component = Component(
        type=ComponentType.OPERATING_SYSTEM,
        bom_ref="image",
        name=clean_line(contents.distribution or inspection.file.path.name),
        version=clean_line(contents.release.get("VERSION_ID", "")) or None,
        description=inspection.file.path.name,
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=digest)] if digest else [],
    )
    if contents.packages.not_read:
        missing = Property(name="hotplate:packages-not-read", value=contents.packages.not_read)
        bom.metadata.properties.add(missing)
    components = [*_packages(contents), *_elements(inspection), *_hooks(contents)]
    bom.components.update(components)
    bom.register_dependency(bom.metadata.component, components)
    text: str = JsonV1Dot6(bom).output_as_string(indent=2)
    return text


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
    from cyclonedx.model import HashAlgorithm, HashType, Property
    from cyclonedx.model.component import Component, ComponentType

    digests, commits = (_texts(inspection.built.get(key)) for key in ("elements", "commits"))
    for name in inspection.elements:
        digest, commit = digests.get(name), commits.get(name)
        yield Component(
            type=ComponentType.APPLICATION,
            bom_ref=f"element:{clean_line(name)}",
            name=clean_line(name),
            hashes=[HashType(alg=HashAlgorithm.SHA_256, content=digest)] if digest else [],
            properties=[
                Property(name="hotplate:kind", value="element"),
                *([Property(name="hotplate:commit", value=commit)] if commit else []),
            ],
        )


def _texts(document: object) -> dict[str, str]:
    """Return the texts of a part of the manifest, which may come from a stranger."""
    if not isinstance(document, dict):
        return {}
    return {name: clean_line(text) for name, text in document.items() if isinstance(text, str)}


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
