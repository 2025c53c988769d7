"""Files that are made when a wheel is built: the man page, and a bill of materials.

A build hook of hatch (https://hatch.pypa.io/latest/plugins/build-hook/custom/).
"""

from __future__ import annotations

import re
import sys
import uuid
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.builders.utils import get_reproducible_timestamp

DESCRIPTION = "images that OpenStack Heat can configure, built and tested"


def page(checkout: Path) -> str:
    """Return the page, without a date.

    :param checkout: the directory that has the package.
    """
    # Imported late: an editable installation has no man page and may lack argparse-manpage.
    from argparse_manpage.manpage import Manpage

    sys.path.insert(0, str(checkout))
    try:
        from hotplate.cli import whole_parser
    finally:
        sys.path.remove(str(checkout))
    parser = whole_parser()
    # argparse-manpage reads this attribute, which argparse does not set.
    vars(parser)["man_short_description"] = DESCRIPTION
    text = str(Manpage(parser, {"project_name": "hotplate", "url": ""}, format="pretty"))
    return re.sub(r'^(\.TH \S+ "?1"?) .*$', r"\1", text, count=1, flags=re.MULTILINE).strip() + "\n"


def bill(version: str, requirements: Iterable[str], *, locked: str) -> str:
    """Return the bill of materials of a wheel of hotplate in CycloneDX 1.6, the same in each build.

    :param requirements: those of the wheel's metadata, as in PEP 508.
    :param locked: the text of a constraints file, with the versions that have been tested.
    """
    from cyclonedx.model import Property
    from cyclonedx.model.bom import Bom
    from cyclonedx.model.component import Component, ComponentType
    from cyclonedx.model.license import DisjunctiveLicense
    from cyclonedx.output.json import JsonV1Dot6
    from packageurl import PackageURL
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    url = PackageURL("pypi", None, "hotplate", version)
    bom = Bom(serial_number=uuid.uuid5(uuid.NAMESPACE_URL, str(url)))
    bom.metadata.timestamp = datetime.fromtimestamp(get_reproducible_timestamp(), UTC)
    bom.metadata.component = Component(
        type=ComponentType.APPLICATION,
        bom_ref=str(url),
        name="hotplate",
        version=version,
        purl=url,
        licenses=[DisjunctiveLicense(id="Apache-2.0")],
    )
    versions: dict[str, list[str | None]] = {}
    for name, tested in re.findall(r"^([\w.-]+)==(\S+)", locked, re.MULTILINE):
        # Several of one package are for several versions of Python.
        versions.setdefault(canonicalize_name(name), []).append(tested)
    for each in map(Requirement, requirements):
        # CycloneDX has no ranges before 1.7.
        needs = Property(name="hotplate:requirement", value=str(each))
        for tested in versions.get(canonicalize_name(each.name), [None]):
            needed = PackageURL("pypi", None, canonicalize_name(each.name), tested)
            bom.components.add(
                Component(
                    type=ComponentType.LIBRARY,
                    bom_ref=str(needed),
                    name=each.name,
                    version=tested,
                    purl=needed,
                    properties=[needs],
                )
            )
    bom.register_dependency(bom.metadata.component, bom.components)
    text: str = JsonV1Dot6(bom).output_as_string(indent=2)
    return text + "\n"


class MadeFiles(BuildHookInterface):  # type: ignore[type-arg]
    """Adds ``share/man/man1/hotplate.1``, and ``sboms/hotplate.cdx.json`` as in PEP 770."""

    def dependencies(self) -> list[str]:
        """Return the packages that make the files; the parser needs PyYAML."""
        return [
            "argparse-manpage>=4.6",
            "cyclonedx-python-lib>=9",
            "packageurl-python",
            "packaging>=22",
            "PyYAML>=6",
        ]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write the files and add them to the wheel."""
        if version == "editable":
            return
        directory, metadata = Path(self.directory), self.metadata
        directory.mkdir(parents=True, exist_ok=True)
        lock = Path(self.root, "tools", "constraints.txt")
        locked = lock.read_text(encoding="utf-8") if lock.is_file() else ""
        files = {
            "hotplate.1": page(Path(self.root)),
            "hotplate.cdx.json": bill(metadata.version, metadata.core.dependencies, locked=locked),
        }
        for name, text in files.items():
            (directory / name).write_text(text, encoding="utf-8")
        build_data["shared_data"][str(directory / "hotplate.1")] = "share/man/man1/hotplate.1"
        build_data["sbom_files"].append(str(directory / "hotplate.cdx.json"))

    def finalize(self, *_: object) -> None:
        """Remove the files, which are now in the wheel."""
        for name in ("hotplate.1", "hotplate.cdx.json"):
            (Path(self.directory) / name).unlink(missing_ok=True)
