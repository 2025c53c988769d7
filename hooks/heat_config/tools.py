"""Library of hooks that run a configuration tool: finding it, its environment, its options."""

from __future__ import annotations

import json
import os
import re

from . import files, hook, values

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from .hook import Deployment

#: The inputs that Heat adds to every deployment; some are credentials.
HEAT_INPUTS = frozenset(
    (
        "deploy_action",
        "deploy_auth_url",
        "deploy_password",
        "deploy_project_id",
        "deploy_queue_id",
        "deploy_region_name",
        "deploy_resource_name",
        "deploy_server_id",
        "deploy_signal_id",
        "deploy_signal_transport",
        "deploy_signal_verb",
        "deploy_stack_id",
        "deploy_user_id",
        "deploy_username",
    )
)

#: The one UTF-8 locale that every image has. The agent runs in C, where Ansible refuses to start
#: and Puppet and Salt break on the first character that is not ASCII.
UTF8 = "C.UTF-8"


def environment() -> dict[str, str]:
    """Return the environment for a tool: the agent's, in UTF-8, and with a home directory."""
    made = dict(os.environ)
    made["LC_ALL"] = UTF8
    # systemd sets HOME only for a system service with User=.
    made.setdefault("HOME", os.path.expanduser("~root"))
    return made


def find(
    what: str, names: list[str], *, setting: str, places: Iterable[str] = (), hint: str
) -> str:
    """Return the path of the first program found; HookError with a sentence when there is none.

    what: the tool's name for the sentence. names: program names, the best first. setting: the
    environment variable that overrides the search. places: directories that packages use besides
    PATH, searched first. hint: how the program comes into an image.
    """
    chosen = os.environ.get(setting)
    wanted = [chosen] if chosen else names
    directories = (os.environ.get("PATH") or os.defpath).split(os.pathsep)
    if not chosen:
        directories = [*places, *directories]
    for name in wanted:
        # A name with a "/" in it is a path already, and join keeps an absolute one as it is.
        for path in [name] if "/" in name else [os.path.join(d, name) for d in directories]:
            if os.path.isfile(path) and os.access(path, os.X_OK):
                return path
    programs = " or ".join(f'"{name}"' for name in wanted)
    chosen_by = f' ({setting} says "{chosen}")' if chosen else ""
    raise hook.HookError(
        f"{what} is not installed on this server: no program {programs} was found{chosen_by}. "
        f"{hint}",
        127,
    )


def age(what: str, program: str, minimum: tuple[int, ...]) -> str:
    """Return a sentence when *program* is older than the version *minimum*, a tuple; else "".

    For use after a failure only: asking a tool for its version can take seconds.
    """
    result = hook.run([program, "--version"], env=environment(), quiet=True, timeout=60)
    # A dotted version, or a lone number of four digits or more, as of Salt (3006).
    match = re.search(r"\b\d+(?:\.\d+)+|\b\d{4,}\b", result.stdout)
    if match is None:
        return ""
    version = tuple(int(part) for part in match.group().split("."))
    if version >= minimum:
        return ""
    least = ".".join(str(part) for part in minimum)
    return f"{what} {match.group()} is too old for this hook, which needs at least {least}.\n"


def text_config(deployment: Deployment) -> str:
    """Return the config as text; HookError if it is a map or a list, or holds a NUL."""
    config = "" if deployment.config is None else deployment.config
    if not isinstance(config, str):
        raise hook.HookError(
            f'The config of group "{deployment.group}" must be text; this one is not. Use '
            "OS::Heat::SoftwareConfig, whose config is a string."
        )
    if "\0" in config:
        raise hook.HookError(f'The config of group "{deployment.group}" holds a NUL byte.')
    return config


def map_config(deployment: Deployment) -> dict[str, Any]:
    """Return the config as a dict, also from JSON text; HookError for anything else."""
    config = deployment.config
    if isinstance(config, str):
        try:
            config = values.decode(config) if config.strip() else {}
        except ValueError:
            config = None
    elif config is None:
        config = {}
    if not isinstance(config, dict):
        raise hook.HookError(
            f'The config of group "{deployment.group}" must be a map, or JSON text of one; this '
            "one is not."
        )
    return config


def flag(deployment: Deployment, *names: str, default: bool) -> bool:
    """Return the first of the options *names* that is given, as a truth value.

    The text that template authors write for false counts as false, and so does a null.
    """
    for name in names:
        if name in deployment.options:
            value = deployment.options[name]
            if isinstance(value, str):
                # bool("false") would be true.
                return value.strip().lower() not in ("", "0", "false", "no", "off")
            return bool(value)
    return default


def joined(deployment: Deployment, name: str, separator: str) -> str:
    """Return the option *name* as text, a list joined by *separator*; "" when it is not given.

    As in heat-agents, false and 0 are not given either.
    """
    value = deployment.options.get(name)
    if isinstance(value, list):
        return separator.join(values.text(item) for item in value)
    return values.text(value) if value else ""


def host_name() -> str:
    """Return the output of ``hostname -f``; the short name where there is no domain or program.

    Bounded: with a dead name server it can take long.
    """
    result = hook.run(["hostname", "-f"], quiet=True, timeout=30)
    return (result.stdout.strip() if result.status == 0 else "") or os.uname().nodename


def datadir() -> str:
    """Return the directory of Hiera's JSON files."""
    return os.environ.get("HEAT_PUPPET_HIERA_DATADIR") or "/etc/puppet/hieradata"


def hiera_config() -> str:
    """Return the path of Hiera's global configuration, where the Puppet in this image reads it."""
    chosen = os.environ.get("HEAT_HIERA_CONFIG")
    if chosen:
        return chosen
    if os.path.isdir("/etc/puppetlabs/puppet") and not os.path.isdir("/etc/puppet/code"):
        return "/etc/puppetlabs/puppet/hiera.yaml"
    return "/etc/puppet/hiera.yaml"


def yaml(value: object) -> str:
    """Return the JSON value *value* as one line of YAML, in ASCII, that is read as the same value.

    Not all JSON is YAML: an escaped surrogate pair is not, some raw characters are not, and
    YAML 1.1 takes 1e+16 for text.
    """
    if isinstance(value, dict):
        return "{" + ", ".join(f"{yaml(k)}: {yaml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return f"[{', '.join(yaml(item) for item in value)}]"
    if isinstance(value, float):
        text = repr(value)
        # YAML 1.1 requires a dot in a float with an exponent.
        return text if "e" not in text or "." in text else text.replace("e", ".0e")
    if isinstance(value, str):
        # JSON escapes beyond the BMP as a surrogate pair, which YAML refuses; \U takes the
        # character.
        text = json.dumps(values.clean(value), ensure_ascii=False)
        return re.sub("[^ -~]", lambda match: f"\\U{ord(match.group()):08x}", text)
    return json.dumps(value)


def hiera5(hierarchy: Iterable[str], directory: str) -> str:
    """Return a Hiera 5 configuration, as YAML, that looks up *hierarchy* in JSON files.

    hierarchy: names of files in *directory*, without ".json"; a name given twice is used once,
    since Hiera 5 refuses repeated ones.
    """
    lines = [
        "---",
        "version: 5",
        "defaults:",
        f"  datadir: {yaml(directory)}",
        "  data_hash: json_data",
        "hierarchy:" if hierarchy else "hierarchy: []",
    ]
    for item in dict.fromkeys(hierarchy):
        lines += [f"  - name: {yaml(item)}", f"    path: {yaml(item + '.json')}"]
    return "\n".join(lines) + "\n"


def private_directory(path: str, mode: int = files.PRIVATE_DIRECTORY) -> str:
    """Make the directory *path*, 0700 when it is new; HookError with a sentence."""
    try:
        return files.make_directory(path, mode)
    except OSError as error:
        raise hook.HookError(f'The directory "{path}" cannot be made: {error.strerror}.') from None


def shared_directory(path: str) -> str:
    """Make the directory *path*, 0755 when it is new: for trees that are not the agent's own."""
    return private_directory(path, files.SHARED_DIRECTORY)


def remove_tree(path: str) -> None:
    """Remove the directory *path* and all below it, if it exists."""
    import shutil  # not at the top: few hooks need it, and it is slow to import

    shutil.rmtree(path, ignore_errors=True)
