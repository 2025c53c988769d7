"""The section "packages": installed by the distribution's or a language's package manager.

After an installation each package is looked up: a manager's exit status is not relied on.
"""

import os
import re
import tempfile
from collections.abc import Callable
from typing import Any

from heat_cfn import download, run
from heat_cfn.problems import CfnError
from heat_cfn.step import Changes, Step, as_list, as_map, as_name, number_text

Wanted = dict[str, list[str]]  # package: acceptable versions, none for the newest
#: Upstream's order; the others follow by name.
FIRST = ("dpkg", "rpm", "apt", "yum", "dnf")
# Wait ten minutes for another apt, such as the one that updates a server at boot, and keep a
# configuration file that was changed, instead of asking.
APT = (
    "apt-get",
    "-y",
    "-o",
    "DPkg::Lock::Timeout=600",
    "-o",
    "Dpkg::Options::=--force-confdef",
    "-o",
    "Dpkg::Options::=--force-confold",
)
NO_QUESTIONS = {"DEBIAN_FRONTEND": "noninteractive", "DEBCONF_NONINTERACTIVE_SEEN": "true"}


def steps(value: Any, where: str) -> list[Step]:
    """Return a step for each package manager.

    :param value: ``{manager: {package: [version, ...]}}``; of several versions any one is
        acceptable. With ``rpm`` and ``dpkg`` the value is the address of the package file.
    """
    result = []
    managers = as_map(value, where)
    supported = {**BY_NAME, **BY_FILE}
    for manager in sorted(managers, key=_order):
        label = f"{where}/{manager}"
        if manager not in supported:
            raise CfnError(f'"{label}" is not a package manager; one of {_names(supported)} is')
        wanted = {}
        for name, versions in sorted(as_map(managers[manager], label).items()):
            as_name(name, label)
            wanted[name] = _versions(manager, versions, f"{label}/{name}")
        if wanted:
            result.append(_step(manager, wanted))
    return result


def _names(supported: dict[str, Any]) -> str:
    return ", ".join(sorted(supported))


def _order(manager: str) -> tuple[int, str]:
    return (FIRST.index(manager) if manager in FIRST else len(FIRST), manager)


def _versions(manager: str, value: Any, where: str) -> list[str]:
    if manager in BY_FILE:
        if isinstance(value, list) and len(value) == 1:
            value = value[0]
        if isinstance(value, str) and os.path.isabs(value):
            value = "file://" + value
        return [download.check(value, where)]
    if isinstance(value, (int, float)):
        value = [value]
    return as_list(number_text(value), where)


def _step(manager: str, wanted: Wanted) -> Step:
    def run_step(changes: Changes) -> None:
        if manager in BY_FILE:
            for name, (url,) in wanted.items():
                _from_file(BY_FILE[manager], name, url)
        else:
            BY_NAME[manager](wanted)
        changes.packages.update(f"{manager}/{name}" for name in wanted)

    return Step(f"packages: {manager} {' '.join(sorted(wanted))}", run_step)


def _one_of(wanted: Wanted, installed: Callable[[str, str], bool]) -> Wanted:
    """Return the packages that are not yet installed in an acceptable version."""
    return {
        name: versions
        for name, versions in wanted.items()
        if not versions or not any(installed(name, version) for version in versions)
    }


def _install(
    wanted: Wanted,
    installed: Callable[[str, str], bool],
    argument: Callable[[str, str], str],
    install: Callable[[list[str]], None],
) -> None:
    """Install the missing packages, and check that they are installed.

    Of several versions the first that the manager can install is taken.
    """
    missing = _one_of(wanted, installed)
    # One call for all without a choice, so that the manager resolves them together.
    together = [
        argument(name, versions[0] if versions else "")
        for name, versions in missing.items()
        if len(versions) < 2
    ]
    if together:
        install(together)
    for name, versions in missing.items():
        for number, version in enumerate(versions if len(versions) > 1 else [], start=1):
            try:
                install([argument(name, version)])
                break
            except CfnError:
                if number == len(versions):
                    raise
    for name, versions in wanted.items():
        if not any(installed(name, version) for version in versions or [""]):
            what = name + (" in version " + " or ".join(versions) if versions else "")
            raise CfnError(f'"{what}" is not installed, although the manager reported no error')


def _apt(wanted: Wanted) -> None:
    def install(arguments: list[str]) -> None:
        # The version in a template may be older than the installed one, which -y alone refuses.
        command = [*APT, "--allow-downgrades", "install", *arguments]
        first = run.ask(command, NO_QUESTIONS)
        if first.returncode == 0:
            return
        # An image's package lists are often absent, or older than the packages on the mirror.
        run.do([*APT, "update"], NO_QUESTIONS)
        run.do(command, NO_QUESTIONS)

    def state(name: str, version: str) -> bool:
        return _dpkg_has(name, version)

    _install(
        wanted, state, lambda name, version: name + ("=" + version if version else ""), install
    )


def _dpkg_has(name: str, version: str) -> bool:
    """Return whether dpkg has the package, or one that provides it, fully installed."""
    # All packages: asked for a name, dpkg-query ignores "Provides".
    form = "${db:Status-Abbrev}|${Package}|${Architecture}|${Version}|${Provides}\n"
    for line in run.ask(["dpkg-query", "-W", "-f", form]).stdout.splitlines():
        status, package, architecture, present, provides = line.split("|", 4)
        # "ii" is wanted and completely installed; "rc" is removed but for its configuration.
        if not status.startswith("ii"):
            continue
        if name in (package, f"{package}:{architecture}"):
            return not version or present == version
        if not version and re.search(rf"(^|[ ,]){re.escape(name)}($|[ ,])", provides):
            return True
    return False


def _rpm_has(name: str, version: str) -> bool:
    if version:
        return run.ask(["rpm", "-q", f"{name}-{version}"]).returncode == 0
    if name.startswith("@"):
        return True  # a group of packages: rely on the manager's own status
    return run.ask(["rpm", "-q", "--whatprovides", name]).returncode == 0


def _rpm_family(wanted: Wanted, command: list[str], separator: str) -> None:
    _install(
        wanted,
        _rpm_has,
        lambda name, version: name + (separator + version if version else ""),
        lambda arguments: _ignore(run.do([*command, *arguments])),
    )


def _ignore(output: str) -> None:
    """Drop a successful manager's output."""


def _yum(wanted: Wanted) -> None:
    # Newer releases have dnf alone.
    program = "yum" if run.available("yum") or not run.available("dnf") else "dnf"
    _rpm_family(wanted, [program, "-y", "install"], "-")


def _dnf(wanted: Wanted) -> None:
    _rpm_family(wanted, ["dnf", "-y", "install"], "-")


def _zypper(wanted: Wanted) -> None:
    _rpm_family(
        wanted,
        ["zypper", "--non-interactive", "install", "--auto-agree-with-licenses"],
        "=",
    )


def _rubygems(wanted: Wanted) -> None:
    def has(name: str, version: str) -> bool:
        options = ["--version", version] if version else []
        command = ["gem", "list", "--installed", "--exact", *options, name]
        return run.ask(command).returncode == 0

    for name, versions in wanted.items():  # several versions of a gem can be installed: install all
        for version in versions or [""]:
            if not version or not has(name, version):
                options = ["--version", version] if version else []
                run.do(["gem", "install", "--no-document", *options, name])
            if not has(name, version):
                raise CfnError(f'the gem "{name}" is not installed after its installation')


def _python(wanted: Wanted) -> None:
    # As root, Debian's pip writes below /usr/local, so that dpkg's own files stay unchanged; its
    # marker against that (PEP 668) is for interactive use, and a template asks explicitly.
    permission = {"PIP_BREAK_SYSTEM_PACKAGES": "1", "PIP_ROOT_USER_ACTION": "ignore"}
    pip = ["python3", "-m", "pip", "--disable-pip-version-check"]
    if run.ask([*pip, "--version"]).returncode != 0:
        raise CfnError('there is no pip; add "python3-pip" to the section "packages"')

    def has(name: str, version: str) -> bool:
        shown = run.ask([*pip, "show", "--quiet", name])
        if shown.returncode != 0 or not version:
            return shown.returncode == 0
        listed = run.do([*pip, "show", name])
        return bool(re.search(rf"^Version: {re.escape(version)}$", listed, re.MULTILINE))

    _install(
        wanted,
        has,
        lambda name, version: name + ("==" + version if version else ""),
        lambda arguments: _ignore(run.do([*pip, "install", *arguments], permission)),
    )


def _from_file(install: list[str], name: str, url: str) -> None:
    """Install one package file with rpm or dpkg, unless that very version is there."""
    suffix = ".rpm" if install[0] == "rpm" else ".deb"
    with download.fetch(url) as data, tempfile.NamedTemporaryFile(suffix=suffix) as file:
        file.write(data.read())
        # rpm and dpkg open the file by its name.
        file.flush()
        run.do([*install, file.name], NO_QUESTIONS)
    has = _rpm_has if install[0] == "rpm" else _dpkg_has
    if not has(name, ""):
        raise CfnError(f'"{name}" is not installed, although the manager reported no error')


BY_NAME: dict[str, Callable[[Wanted], None]] = {
    "apt": _apt,
    "yum": _yum,
    "dnf": _dnf,
    "zypper": _zypper,
    "rubygems": _rubygems,
    "python": _python,
}
BY_FILE: dict[str, list[str]] = {
    # The same version again is no error with --replacepkgs.
    "rpm": ["rpm", "-U", "--replacepkgs", "--quiet"],
    "dpkg": ["dpkg", "--install"],
}
