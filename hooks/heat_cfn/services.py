"""The section "services"."""

from __future__ import annotations

import os
from typing import Any

from heat_cfn import run
from heat_cfn.problems import CfnError
from heat_cfn.step import Changes, Step, as_flag, as_map, as_name, kind

MANAGERS = ("systemd", "sysvinit")
#: Where systemd reads units, and its generator for SysV reads scripts.
UNIT_DIRECTORIES = ("/etc/systemd/", "/usr/lib/systemd/", "/lib/systemd/", "/etc/init.d/")


def steps(value: Any, where: str) -> list[Step]:
    """Return a step for each service.

    :param value: ``{"systemd" or "sysvinit": {name: {"enabled", "ensureRunning", "files",
        "sources", "packages", "commands"}}}``; the last four name the changes of this run of
        cfn-init that restart the service.
    """
    result = []
    managers = as_map(value, where)
    for manager in sorted(managers):
        label = f"{where}/{manager}"
        if manager not in MANAGERS:
            raise CfnError(f'"{label}" is not a service manager; systemd and sysvinit are')
        for name, properties in sorted(as_map(managers[manager], label).items()):
            as_name(name, label)
            service = Service(manager, name, as_map(properties, label), f"{label}/{name}")
            result.append(Step(f'services: "{name}"', service.bring_about))
    return result


class Service:
    """One service of the metadata: its wanted state, and how to reach it."""

    def __init__(self, manager: str, name: str, entry: dict[str, Any], where: str) -> None:
        self.name = name
        self.manager = manager
        self.enabled = _optional_flag(entry, "enabled", where)
        self.running = _optional_flag(entry, "ensureRunning", where)
        self.triggers = Changes(
            _packages(entry.get("packages"), where + "/packages"),
            _names(entry.get("sources"), where + "/sources"),
            _names(entry.get("files"), where + "/files"),
            _names(entry.get("commands"), where + "/commands"),
        )

    def bring_about(self, changes: Changes) -> None:
        """Enable or disable, then start, stop or restart the service."""
        control = control_for(self.manager)
        # First of all: systemd does not know a unit that the section "files" has just written.
        if any(path.startswith(UNIT_DIRECTORIES) for path in changes.files):
            control.reload()
        if self.enabled is not None:
            try:
                control.enable(self.name, self.enabled)
            except CfnError:
                # heat-cfntools 1.4.2 ignores the status of "disable", and templates for several
                # distributions rely on it: a service that does not exist is off.
                if self.enabled or self.running or not control.is_absent(self.name):
                    raise
                return
        running = control.is_running(self.name) if self.running is not None else False
        if self.running is True and not running:
            control.start(self.name)
        elif self.running is False and running:
            control.stop(self.name)
        # A service that has just been started needs no restart.
        elif self.running is not False and self._touched(changes):
            control.restart(self.name)

    def keep_running(self) -> bool:
        """Start the service if it should run and does not; return whether it was started."""
        control = control_for(self.manager)
        if self.running is not True or control.is_running(self.name):
            return False
        control.start(self.name)
        return True

    def _touched(self, changes: Changes) -> bool:
        pairs = (
            (self.triggers.packages, changes.packages),
            (self.triggers.sources, changes.sources),
            (self.triggers.files, changes.files),
            (self.triggers.commands, changes.commands),
        )
        return any(wanted & changed for wanted, changed in pairs)


class Systemd:
    """systemctl; it handles SysV scripts too, by systemd's own generator."""

    def reload(self) -> None:
        run.do(["systemctl", "daemon-reload"])

    def enable(self, name: str, wanted: bool) -> None:
        run.do(["systemctl", "enable" if wanted else "disable", unit(name)])

    def is_absent(self, name: str) -> bool:
        """Return whether there is no such unit, or it is masked, so that nothing can start it."""
        shown = run.ask(["systemctl", "show", "--property=LoadState", "--value", unit(name)])
        return shown.stdout.strip() in ("not-found", "masked")

    def is_running(self, name: str) -> bool:
        return run.ask(["systemctl", "is-active", "--quiet", unit(name)]).returncode == 0

    def start(self, name: str) -> None:
        run.do(["systemctl", "start", unit(name)])
        self._check(name)

    def restart(self, name: str) -> None:
        run.do(["systemctl", "restart", unit(name)])
        self._check(name)

    def stop(self, name: str) -> None:
        run.do(["systemctl", "stop", unit(name)])

    def _check(self, name: str) -> None:
        # Not "is-active": a unit of Type=oneshot that has done its work is inactive again.
        if run.ask(["systemctl", "is-failed", "--quiet", unit(name)]).returncode == 0:
            raise CfnError(f"it was started and failed at once; see: journalctl -u {unit(name)}")


class SysV:
    """service(8), with update-rc.d of Debian or chkconfig of Red Hat."""

    def reload(self) -> None:
        """Do nothing: SysV has no unit files to reload."""

    def enable(self, name: str, wanted: bool) -> None:
        if run.available("update-rc.d"):
            # "enable" fails where there are no links yet, which "defaults" makes.
            run.do(["update-rc.d", name, "defaults"])
            run.do(["update-rc.d", name, "enable" if wanted else "disable"])
        else:
            run.do(["chkconfig", name, "on" if wanted else "off"])

    def is_absent(self, name: str) -> bool:
        return not os.path.exists(os.path.join("/etc/init.d", name))

    def is_running(self, name: str) -> bool:
        return run.ask(["service", name, "status"]).returncode == 0

    def start(self, name: str) -> None:
        run.do(["service", name, "start"])

    def restart(self, name: str) -> None:
        run.do(["service", name, "restart"])

    def stop(self, name: str) -> None:
        run.do(["service", name, "stop"])


def control_for(manager: str) -> Any:
    """Return the service manager of this machine: systemctl if there is one."""
    if manager == "systemd" or run.available("systemctl"):
        return Systemd()
    return SysV()


def unit(name: str) -> str:
    """Return the name of the unit; a name without a type is a service."""
    kinds = (".service", ".socket", ".timer", ".path", ".target", ".mount")
    return name if name.endswith(kinds) else name + ".service"


def _optional_flag(entry: dict[str, Any], name: str, where: str) -> bool | None:
    if entry.get(name) is None:
        return None
    return as_flag(entry[name], f"{where}/{name}")


def _names(value: Any, where: str) -> set[str]:
    items = [value] if isinstance(value, str) else value if value is not None else []
    if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
        raise CfnError(f'"{where}" must be a list of strings, not {kind(value)}')
    # As in the changes of the sections, so that /etc//motd is found there.
    return {os.path.normpath(item) if item.startswith("/") else item for item in items}


def _packages(value: Any, where: str) -> set[str]:
    return {
        f"{manager}/{name}"
        for manager, names in as_map(value, where).items()
        for name in _names(names, f"{where}/{manager}")
    }
