"""An inspection as text, and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from hotplate.inspection.contents import Contents, Hook
from hotplate.inspection.findings import ImageFault, Level
from hotplate.inspection.inspection import Inspection, Manifest
from hotplate.inspection.standard import BY_ID
from hotplate.text import clean_all, clean_line

#: Version of the JSON, raised when a key is removed or changes its meaning.
FORMAT = 1


def as_document(inspection: Inspection) -> dict[str, Any]:
    """Return the inspection for ``--json``."""
    file = inspection.file
    document: dict[str, Any] = {
        "format": FORMAT,
        "image": str(file.path),
        "image_format": file.format,
        "bytes": file.path.stat().st_size,
        "virtual_size": file.virtual_size,
        "manifest": inspection.manifest.value,
        "table": inspection.table.kind if inspection.table else None,
        "firmware": inspection.firmware,
        "boot_loaders": inspection.boot_loaders,
        "partitions": [asdict(each) for each in inspection.partitions],
        "unread": inspection.unread,
        "missing": list(inspection.missing),
        "elements": list(inspection.elements),
        "built": {name: inspection.built.get(name) for name in ("built", "hotplate", "groups")},
        "findings": [
            {**asdict(each), "reason": BY_ID[each.kind].reason, "source": BY_ID[each.kind].source}
            for each in inspection.findings
        ],
    }
    if inspection.contents is not None:
        document |= _of_contents(inspection.contents)
    result: dict[str, Any] = clean_all(document)
    return result


def _of_contents(contents: Contents) -> dict[str, Any]:
    return {
        "distribution": {
            "name": contents.distribution,
            "id": contents.release.get("ID", ""),
            "version": contents.release.get("VERSION_ID", ""),
            "codename": contents.release.get("VERSION_CODENAME", ""),
        },
        "arch": contents.arch,
        "init": contents.init,
        "kernels": contents.kernels,
        "command_line": contents.command_line,
        "boot_entries": [asdict(each) for each in contents.boot_entries],
        "agent": asdict(contents.agent) if contents.agent else None,
        "hooks": [asdict(each) for each in contents.hooks],
        "cloud_init": asdict(contents.cloud_init) if contents.cloud_init else None,
        "bootstrap": contents.has_bootstrap,
        "renderers": contents.renderers,
        "dhcp_client": contents.dhcp_client,
        "package_manager": contents.packages.manager,
        "packages": [asdict(each) for each in contents.packages.installed.values()],
        "python": [asdict(each) for each in contents.packages.python],
        "packages_not_read": contents.packages.not_read,
    }


def as_text(inspection: Inspection) -> str:
    """Return the inspection as text."""
    rows = [*_outside(inspection)]
    if inspection.contents is not None:
        rows += _inside(inspection, inspection.contents)
    width = max(len(name) for name, _ in rows)
    lines = [f"{name:{width}}  {clean_line(text)}" for name, text in rows]
    if inspection.unread:
        lines.append(clean_line(inspection.unread))
    lines += map(clean_line, inspection.missing)
    if inspection.contents is not None:
        lines += _findings(inspection.findings)
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _outside(inspection: Inspection) -> Iterator[tuple[str, str]]:
    file = inspection.file
    size = file.path.stat().st_size
    yield "image", f"{file.path}"
    yield "file", f"{file.format}, {megabytes(size)}; a disk of {megabytes(file.virtual_size)}"
    yield "manifest", _manifest(inspection)
    table = inspection.table.kind.upper() if inspection.table else "no partition table"
    firmware = " and ".join(inspection.firmware)
    if not firmware:
        firmware = "kernel beside it" if inspection.kernel_beside else "nothing starts it"
    yield "boots by", f"{firmware}; {table}"
    for each in inspection.partitions:
        number = str(each).removeprefix("the ").replace('"', "")
        root = ", root" if each == inspection.root else ""
        purpose = "" if each.purpose == "data" else f", {each.purpose}"
        yield number, f"{each.file_system or 'unknown'}, {megabytes(each.size)}{purpose}{root}"


def _manifest(inspection: Inspection) -> str:
    if inspection.manifest is not Manifest.FITS:
        return inspection.manifest.value
    built = inspection.built
    return f"fits: built {built.get('built')} by hotplate {built.get('hotplate')}"


def _inside(inspection: Inspection, contents: Contents) -> Iterator[tuple[str, str]]:
    yield "system", f"{contents.distribution or 'unknown'} {contents.arch}".rstrip()
    yield "init", contents.init or "none"
    yield "kernel", ", ".join(contents.kernels) or "none"
    yield "boot loader", ", ".join(inspection.boot_loaders) or "none"
    for entry in contents.boot_entries:
        yield "boot entry", " ".join(f"{entry.kind} {entry.name}: {entry.version}".split())
    yield "command line", contents.command_line or "unknown"
    agent = contents.agent
    words = f"{agent.install_type} {agent.version}".rstrip() if agent else "none"
    yield "agent", words
    for hook in contents.hooks:
        yield "hook", _hook(hook)
    yield "metadata", _metadata(contents)
    client = contents.dhcp_client.rpartition("/")[2]
    network = ", ".join(contents.renderers) or "none"
    yield "network", f"{network}; DHCP client: {client or 'none'}"
    packages = contents.packages
    count = packages.not_read or f"{len(packages.installed)} of {packages.manager}"
    yield "packages", f"{count}; {len(packages.python)} Python distributions beside"
    if inspection.elements:
        yield "elements", " ".join(sorted(inspection.elements))


def _hook(hook: Hook) -> str:
    if not hook.wanted:
        return hook.group
    tool = hook.tool_version or hook.tool
    return f"{hook.group}: {tool or 'its tool is missing'}"


def _metadata(contents: Contents) -> str:
    init = contents.cloud_init
    if init is None:
        return "heat-config-bootstrap" if contents.has_bootstrap else "none"
    return f"cloud-init {init.version}: {', '.join(init.sources)}"


def _findings(findings: tuple[ImageFault, ...]) -> Iterator[str]:
    titles = {
        Level.FAILS: "What will not work:",
        Level.LEFT: "What was left in:",
        Level.DIFFERS: "What differs from a standard image:",
    }
    if not findings:
        yield "findings  none"
    for level, title in titles.items():
        listed = [each for each in findings if each.level is level]
        if listed:
            yield title
        for each in listed:
            yield f"  {each.kind}: {clean_line(each.sentence)}"
            yield f"      mend: {clean_line(each.mend)}"
            yield f"      source: {BY_ID[each.kind].source}"


def megabytes(size: int) -> str:
    """Return a size as text."""
    return f"{size / 1_000_000:,.0f} MB"
