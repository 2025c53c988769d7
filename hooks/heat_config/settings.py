"""The runner's settings: the environment, then /etc/heat-config.conf, then these defaults."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

CONFIG_FILE = "/etc/heat-config.conf"

#: Seconds each.  timeout: how long a hook may run unless its options say otherwise; 0 is for ever.
#: kill_after: between SIGTERM and SIGKILL of a hook that ran too long. request_timeout: one request
#: of a signal, from connecting to the last byte of the answer. signal_time: all signals of one pass
#: together; the rest wait for the next. forget_after: how long a deployment must be missing from
#: the metadata before its state is removed; seven times that when the metadata has no deployments
#: at all, which may be an outage. keep_logs: how long the logs of such a deployment stay.
NUMBERS = {
    "timeout": 14400.0,
    "kill_after": 10.0,
    "request_timeout": 30.0,
    "signal_time": 120.0,
    "forget_after": 86400.0,
    "keep_logs": 14 * 86400.0,
}


class Settings:
    """Paths and limits of one run; *problems* are sentences about unusable settings.

    umask: that of hooks and their children, None for the current one.
    """

    def __init__(self, environ: Mapping[str, str] = os.environ, umask: int | None = None) -> None:
        self.umask = umask
        self.problems: list[str] = []
        given = self._read(environ.get("HEAT_CONFIG_FILE") or CONFIG_FILE)
        # HEAT_SHELL_CONFIG and HEAT_CONFIG_DEPLOYED have heat-agents' names and defaults.
        self.document = environ.get("HEAT_SHELL_CONFIG") or "/var/run/heat-config/heat-config"
        self.state = environ.get("HEAT_CONFIG_DEPLOYED") or "/var/lib/heat-config/deployed"
        self.logs = environ.get("HEAT_CONFIG_LOGS") or given.get("logs") or "/var/log/heat-config"
        self.console = environ.get("HEAT_CONFIG_CONSOLE") or given.get("console") or "/dev/console"
        self.notify = environ.get("HEAT_CONFIG_NOTIFY") or None
        self.ca_file = environ.get("HEAT_CONFIG_CA_FILE") or given.get("ca_file") or None
        self.hooks = [
            directory
            for directory in (
                # The first match wins: the administrator's directory, the image's, and the one that
                # the elements of heat-agents install to.
                environ.get("HEAT_CONFIG_HOOKS"),
                "/usr/libexec/heat-config/hooks",
                "/var/lib/heat-config/hooks",
            )
            if directory
        ]
        self.timeout = self._number(given, "timeout")
        self.kill_after = self._number(given, "kill_after")
        self.request_timeout = self._number(given, "request_timeout") or 30.0
        self.signal_time = self._number(given, "signal_time")
        self.forget_after = self._number(given, "forget_after")
        self.keep_logs = self._number(given, "keep_logs")

    def _read(self, path: str) -> dict[str, str]:
        """Return {key: text} of ``key = value`` lines; comments and [sections] are skipped."""
        try:
            with open(path, encoding="utf-8", errors="replace") as stream:
                lines = stream.read(1 << 20).splitlines()
        except FileNotFoundError:
            return {}
        except OSError as error:
            self.problems.append(f'"{path}" cannot be read: {error.strerror}.')
            return {}
        keys = set(NUMBERS) | {"logs", "console", "ca_file"}
        given = {}
        for number, line in enumerate(lines, 1):
            line = line.strip()
            # Comments and section headings of an INI file.
            if not line or line[0] in "#;[":
                continue
            key, equals, value = line.partition("=")
            if equals and key.strip() in keys:
                given[key.strip()] = value.strip()
            else:
                valid = ", ".join(sorted(keys))
                self.problems.append(
                    f'"{path}" line {number} is not understood and was ignored. Valid settings '
                    f"are: {valid}."
                )
        return given

    def _number(self, given: dict[str, str], key: str) -> float:
        if key not in given:
            return NUMBERS[key]
        number = seconds(given[key])
        if number is None:
            self.problems.append(
                f'The setting "{key}" must be a number of seconds; {NUMBERS[key]:g} is used '
                "instead."
            )
            return NUMBERS[key]
        return number


def seconds(value: object) -> float | None:
    """Return *value*, a number or its text, as seconds; None when it is not a sensible one."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    # NaN compares as false, so it is refused here too.
    return number if 0 <= number <= 1e9 else None
