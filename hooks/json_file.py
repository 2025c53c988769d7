#!/usr/bin/python3 -IS
"""Heat hook "json-file": the config maps absolute paths to data; write each as a JSON file."""

import json
import os
import re
import stat
import sys

sys.path.insert(0, os.environ.get("HEAT_CONFIG_LIB", "/usr/libexec/heat-config/lib"))
from heat_config import hook, tools, values


def wanted_mode(deployment):
    """Return the option "mode" (octal text, as "0644") as a number, None when it is not given."""
    given = deployment.options.get("mode")
    if given is None:
        return None
    text = values.text(given)
    if not re.match(r"0?[0-7]{3}\Z", text):
        raise hook.HookError(
            'The option "mode" must be text of three or four octal digits, for instance "0644".'
        )
    return int(text, 8)


def target(path):
    """Return where *path* really points; HookError when no file can be written there."""
    shown = values.encode(values.clean(path))
    if not path.startswith("/") or "\0" in path or path.endswith("/"):
        raise hook.HookError(
            "%s is not the absolute path of a file, and nothing was written. A config of group "
            '"json-file" maps paths such as "/etc/app.json" to data.' % shown
        )
    real = os.path.realpath(path)
    if os.path.exists(real) and not os.path.isfile(real):
        raise hook.HookError("%s exists and is not a file; nothing was written." % shown)
    return real


def umask():
    """Return this process's umask, which is that of the agent's unit."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def write(path, text, mode):
    """Replace *path*; keep mode and owner of an existing file, else the umask decides."""
    try:
        old = os.stat(path)
    except OSError:
        old = None
    if mode is None:
        mode = stat.S_IMODE(old.st_mode) if old else 0o666 & ~umask()
    if old is None or (old.st_uid, old.st_gid) == (os.geteuid(), os.getegid()):
        return hook.write_file(path, text, mode=mode)
    hook.write_file(path, text, mode=0o600)
    os.chown(path, old.st_uid, old.st_gid)
    return os.chmod(path, mode)


@hook.main
def main(deployment):
    """Check every path, then write every file."""
    mode = wanted_mode(deployment)
    targets = [(target(path), data) for path, data in tools.map_config(deployment).items()]
    for path, data in targets:
        tools.shared_directory(os.path.dirname(path))
        text = json.dumps(data, indent=4, sort_keys=True, separators=(",", ": "))
        write(path, text, mode)
    return hook.Response()
