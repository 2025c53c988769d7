"""cfn-hup: check once whether the metadata has changed, and run the hooks for the change.

As in heat-cfntools this is one check, not a daemon: run it from cron or from a systemd timer.
"""

from __future__ import annotations

import json
import os
import subprocess
from configparser import ConfigParser, Error
from typing import Any, NamedTuple

from heat_cfn import command_line, metadata, plan, services, show
from heat_cfn.problems import CfnError
from heat_cfn.step import as_map

PROGRAM = "cfn-hup"
LONGEST_VARIABLE = 128 << 10  # bytes with its name and a NUL; Linux has 32 pages, MAX_ARG_STRLEN


class Hook(NamedTuple):
    """One section of a hook file."""

    name: str
    triggers: list[str]
    resource: str
    path: str  # within the metadata; empty for the whole of it
    action: str
    runas: str


def main(argv: list[str] | None = None) -> int:
    """Run cfn-hup; returns 0 when nothing has changed or every hook succeeded."""
    options = command_line.parser(
        PROGRAM, "Run the hooks whose part of the metadata has changed since the last time."
    )
    options.add_argument(
        "-c", "--config", default="/etc/cfn", metavar="DIR", help="default: /etc/cfn"
    )
    options.add_argument(
        "-f", "--no-daemon", action="store_true", help="accepted; cfn-hup never becomes a daemon"
    )
    options.add_argument("-v", "--verbose", action="store_true", help="say which hooks are run")
    arguments = options.parse_args(argv)
    return command_line.run(PROGRAM, lambda: _look(arguments))


def _look(arguments: Any) -> int:
    directory = arguments.config
    main_file = directory
    # --config may also name the main file.
    if os.path.isdir(directory):
        main_file = os.path.join(directory, "cfn-hup.conf")
    else:
        directory = os.path.dirname(directory)
    settings = _main(main_file)
    hooks = _hooks(main_file, directory)
    if not hooks:
        raise CfnError(f'no hooks were found in "{directory}" and "hooks.d"')
    failed = []
    for resource in sorted({hook.resource for hook in hooks}):
        mine = [hook for hook in hooks if hook.resource == resource]
        failed += _resource(settings, resource, mine, arguments.verbose)
    if failed:
        raise CfnError(f"these hooks failed: {', '.join(failed)}")
    return 0


def _resource(settings: dict[str, str], resource: str, hooks: list[Hook], loud: bool) -> list[str]:
    old = metadata.previous(resource)
    credentials = settings.get("credential-file")
    # With keys Heat is asked; without them another program has to renew the copy on the disk.
    if credentials:
        keys = metadata.credentials_from(credentials)
        new = metadata.describe(settings["stack"], resource, keys, settings.get("url"))
    else:
        new = metadata.kept()
    failed = []
    for hook in hooks:
        for trigger in ("post.add", "post.update", "post.delete"):
            if trigger in hook.triggers and _happened(trigger, hook.path, old, new):
                failed += _run(hook, old, new, loud)
    # Hooks on restarts come last: a hook of the change may have started the services.
    restarted = _restart_services(new) if any(_wants_restarts(hook) for hook in hooks) else False
    for hook in hooks:
        if restarted and _wants_restarts(hook):
            failed += _run(hook, old, new, loud)
    if not failed:  # otherwise the next check must see the change again
        metadata.keep(new, resource)
    return failed


def _wants_restarts(hook: Hook) -> bool:
    return "service.restarted" in hook.triggers


def _happened(trigger: str, path: str, old: Any, new: Any) -> bool:
    absent = object()

    def at(document: Any) -> Any:
        try:
            return show.part(document, path) if document is not None else absent
        except CfnError:
            return absent

    before, after = at(old), at(new)
    # On the first check there is no earlier document, so nothing was added.
    if trigger == "post.add":
        return old is not None and before is absent and after is not absent
    if trigger == "post.delete":
        return before is not absent and after is absent
    return before is not absent and after is not absent and before != after


def _restart_services(document: Any) -> bool:
    """Start the services that should run and do not; return whether there were any."""
    init = plan.initial(document)
    started = False
    for name in plan.configurations(init):
        section = as_map(as_map(init.get(name), name).get("services"), "services")
        for manager, entries in section.items():
            for service, entry in as_map(entries, manager).items():
                one = services.Service(manager, service, as_map(entry, service), service)
                started = one.keep_running() or started
    return started


def _run(hook: Hook, old: Any, new: Any, loud: bool) -> list[str]:
    command_line.note(PROGRAM, f'hook "{hook.name}"')
    if loud:
        print(f'hook "{hook.name}"', flush=True)
    environment = dict(os.environ)
    for variable, document in (("CFN_OLD_METADATA", old), ("CFN_NEW_METADATA", new)):
        text = json.dumps(document)
        if len(variable) + len(text) + 2 <= LONGEST_VARIABLE:
            environment[variable] = text
        else:
            command_line.note(PROGRAM, f"the metadata is too long for {variable}")
    argv = ["/bin/sh", "-c", hook.action]
    if hook.runas and hook.runas != "root":
        argv = ["runuser", "-u", hook.runas, "--", *argv]
    try:
        ended = subprocess.run(argv, stdin=subprocess.DEVNULL, env=environment)
    except OSError as error:
        command_line.note(PROGRAM, f'hook "{hook.name}" cannot be run: {error.strerror}')
        return [hook.name]
    return [hook.name] if ended.returncode else []


def _main(path: str) -> dict[str, str]:
    settings = dict(_parse(path).get("main", {}))
    if not settings.get("stack"):
        raise CfnError(f'"{path}" must have the section [main] with "stack"')
    return settings


def _hooks(main_file: str, directory: str) -> list[Hook]:
    paths = [main_file, os.path.join(directory, "hooks.conf")]
    more = os.path.join(directory, "hooks.d")
    if os.path.isdir(more):
        paths += [os.path.join(more, name) for name in sorted(os.listdir(more))]
    hooks = []
    for path in paths:
        if os.path.isfile(path):
            for name, entry in _parse(path).items():
                if name != "main":
                    hooks.append(_hook(name, entry, path))
    return hooks


def _hook(name: str, entry: dict[str, str], file: str) -> Hook:
    if not entry.get("triggers") or not entry.get("path") or not entry.get("action"):
        raise CfnError(f'"{name}" in "{file}" must have triggers, path and action')
    # The rest is a key of the metadata, which may have dots of its own.
    parts = entry["path"].split(".", 3)
    if len(parts) < 2 or parts[0] != "Resources" or (len(parts) > 2 and parts[2] != "Metadata"):
        raise CfnError(f'"path" of "{name}" in "{file}" must be Resources.<name>.Metadata[.<key>]')
    return Hook(
        name,
        [trigger.strip() for trigger in entry["triggers"].split(",")],
        parts[1],
        parts[3] if len(parts) > 3 else "",
        entry["action"],
        entry.get("runas", ""),
    )


def _parse(path: str) -> dict[str, dict[str, str]]:
    # No interpolation: an action may have a "%" in it, as in "date +%s".
    parser = ConfigParser(interpolation=None)
    try:
        with open(path, encoding="utf-8") as file:
            parser.read_file(file)
    except (OSError, UnicodeDecodeError):
        raise CfnError(f'"{path}" cannot be read') from None
    except Error:
        raise CfnError(f'"{path}" is not an ini file') from None
    return {name: dict(parser[name]) for name in parser.sections()}
