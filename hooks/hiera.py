#!/usr/bin/python3 -IS
"""Heat hook "hiera": the config is a hierarchy and data; write Hiera's configuration and files."""

from __future__ import annotations

import json
import os
import re
import sys

sys.path.insert(0, os.environ.get("HEAT_CONFIG_LIB", "/usr/libexec/heat-config/lib"))
from heat_config import hook, tools, values

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: The default type of --key accepts no JSON, hence "raw".
LEGACY_CHECK = "os-apply-config --key hiera.datafiles --type raw --key-default empty"

# Text of one line in YAML 1.1. The end may hold a comment.
END = r"(?:\s+#.*)?\Z"
SINGLE = re.compile(r"'((?:[^'\n]|'')*)'" + END)
DOUBLE = re.compile(r'("(?:[^"\\\n]|\\.)*")' + END)
PLAIN = re.compile(
    r"""((?:[^\s,\[\]{}#&*!|>'"%@`?:-]|[?:-](?=\S))(?:[^\s:]|:(?=\S))*"""
    r"""(?:[ \t]+(?!\#)(?:[^\s:]|:(?=\S))+)*)""" + END
)


def levels(item: Any) -> list[str]:
    """Return the names that *item* of the hierarchy means; HookError when it has none.

    heat-agents writes ``"  - %s" % item`` and lets YAML read it, so templates quote a name that
    begins with "%", and a list in the list is levels of its own.
    """
    if isinstance(item, list):  # Python writes its items unchanged, in quotes
        inner = [[each] if isinstance(each, str) else levels(each) for each in item]
        return [name for names in inner for name in names]
    if isinstance(item, str):
        return [read_yaml(line) for line in item.split("\n  - ")]
    if isinstance(item, dict):
        raise hook.HookError('"hierarchy" in a config of group "hiera" must be a list of names.')
    return ["None" if item is None else values.text(item)]


def read_yaml(text: str) -> str:
    """Return the text that YAML reads behind a "- "; the text itself where YAML cannot read it."""
    stripped = text.strip()
    double = DOUBLE.match(stripped)
    if double:
        try:
            return str(values.decode(double.group(1)))
        except ValueError:  # an escape that JSON does not have
            return text
    single = SINGLE.match(stripped)
    if single:
        return single.group(1).replace("''", "'")
    plain = PLAIN.match(stripped)
    return plain.group(1) if plain else text if stripped else ""


def configuration(deployment: hook.Deployment, hierarchy: list[str], directory: str) -> str:
    """Return the configuration in the format of the option "hiera_version", 5 when not given.

    Puppet reads 5 since 4.9 and nothing else since 8; the program ``hiera`` reads only 3.
    """
    version = values.text(deployment.options.get("hiera_version", 5))
    if version == "5":
        return tools.hiera5(hierarchy, directory)
    if version == "3":
        lines = ["---", ":backends:", "  - json", ":json:", "  :datadir: " + tools.yaml(directory)]
        lines += [":hierarchy:", *("  - " + tools.yaml(item) for item in hierarchy)]
        return "\n".join(lines) + "\n"
    raise hook.HookError('The option "hiera_version" must be 5 or 3.')


def data_path(directory: str, name: str) -> str:
    """Return the file of the data called *name*; HookError when that is outside *directory*."""
    parts = name.split("/")
    if "\0" in name or any(part in ("", ".", "..") for part in parts):
        raise hook.HookError(
            f"The data file name {values.encode(values.clean(name))} does not stay inside Hiera's "
            "data directory; nothing was written."
        )
    return os.path.join(directory, *parts) + ".json"


def refuse_legacy_data() -> None:
    """Raise HookError when os-apply-config has Hiera data too, which would overwrite ours."""
    command = (os.environ.get("HEAT_HIERA_ELEMENT_CHECK_CMD") or LEGACY_CHECK).split()
    result = hook.run(command, env=tools.environment(), quiet=True, timeout=120)
    if result.status == 0 and result.stdout.strip() != "empty":
        raise hook.HookError(
            "This server's metadata has legacy Hiera data (the key hiera.datafiles), which "
            "os-apply-config writes over what this hook writes. Move it to deployments of group "
            '"hiera" first.'
        )


@hook.main
def main(deployment: hook.Deployment) -> hook.Response:
    """Write the data files first, then the configuration that names them."""
    config = tools.map_config(deployment)
    hierarchy = config.get("hierarchy")
    data = config.get("datafiles") or {}
    if hierarchy is not None:
        if not isinstance(hierarchy, list):
            raise hook.HookError(
                '"hierarchy" in a config of group "hiera" must be a list of names.'
            )
        # An empty name has no file, and Hiera 5 refuses the whole configuration for it.
        hierarchy = [name for item in hierarchy for name in levels(item) if name]
    if not isinstance(data, dict):
        raise hook.HookError(
            '"datafiles" in a config of group "hiera" must be a map of names to data.'
        )
    directory = tools.datadir()
    text = None if hierarchy is None else configuration(deployment, hierarchy, directory)
    paths = {name: data_path(directory, name) for name in data}
    refuse_legacy_data()
    tools.private_directory(directory)
    for name, path in paths.items():
        tools.private_directory(os.path.dirname(path))
        content = json.dumps(data[name], indent=4, sort_keys=True, separators=(",", ": "))
        hook.write_file(path, content)
    if text is not None:
        file = tools.hiera_config()
        tools.shared_directory(os.path.dirname(file))
        hook.write_file(file, text)
    return hook.Response()
