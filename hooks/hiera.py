#!/usr/bin/python3 -IS
"""Heat hook "hiera": the config is a hierarchy and data; write Hiera's configuration and files."""

import json
import os
import sys

sys.path.insert(0, os.environ.get("HEAT_CONFIG_LIB", "/usr/libexec/heat-config/lib"))
from heat_config import hook, tools, values

LEGACY_CHECK = "os-apply-config --key hiera.datafiles --type raw --key-default empty"


def configuration(deployment, hierarchy, directory):
    """Return the configuration in the format of the option "hiera_version", 5 when not given.

    5 is what Puppet reads since 4.9 and the only one since 8; the program ``hiera`` reads only 3.
    """
    version = values.text(deployment.options.get("hiera_version", 5))
    if version == "5":
        return tools.hiera5(hierarchy, directory)
    if version == "3":
        lines = ["---", ":backends:", "  - json", ":json:", "  :datadir: " + tools.yaml(directory)]
        lines += [":hierarchy:", *("  - " + tools.yaml(item) for item in hierarchy)]
        return "\n".join(lines) + "\n"
    raise hook.HookError('The option "hiera_version" must be 5 or 3.')


def data_path(directory, name):
    """Return the file of the data called *name*; HookError when that is outside *directory*."""
    parts = name.split("/")
    if "\0" in name or any(part in ("", ".", "..") for part in parts):
        raise hook.HookError(
            "The data file name %s does not stay inside Hiera's data directory; nothing was "
            "written." % values.encode(values.clean(name))
        )
    return os.path.join(directory, *parts) + ".json"


def refuse_legacy_data():
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
def main(deployment):
    """Write the data files first, then the configuration that names them."""
    config = tools.map_config(deployment)
    hierarchy = config.get("hierarchy")
    data = config.get("datafiles") or {}
    if hierarchy is not None and not (
        isinstance(hierarchy, list) and all(isinstance(item, str) for item in hierarchy)
    ):
        raise hook.HookError('"hierarchy" in a config of group "hiera" must be a list of names.')
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
