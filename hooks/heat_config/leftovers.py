"""Files of a deployment in the hooks' directories: outputs, configs and, if killed, inputs.

A hook removes files that hold inputs when it ends, but cannot when it is killed. The config and
the outputs stay for an administrator to read until the deployment is forgotten.
"""

from __future__ import annotations

import contextlib
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from .state import Record

#: Files that may hold inputs, in a hook's working directory.
SECRET = (
    "{directory}/{key}_variables.json",  # ansible
    "{directory}/{key}.metadata",  # cfn-init
    "{directory}/{key}.hiera.yaml",  # puppet
    "{directory}.run/{key}",  # salt
    "{directory}/.runs/{key}",  # chef
)

#: The configs themselves.
CONFIGS = (
    "{directory}/{key}",
    "{directory}/{key}.pp",
    "{directory}/{key}.sls",
    "{directory}/{key}_playbook.yaml",
)

BASE = "/var/lib/heat-config"
METADATA = "/var/cache/heat-cfntools"
HIERA = "/etc/puppet/hieradata"


class Leftovers:
    """The directories of all hooks: those with the usual names, and those in the environment.

    base: the directory with ``heat-config-<group>``; kept: directories of the runner's own, in
    which no file is removed.
    """

    def __init__(
        self, environ: Mapping[str, str], *, base: str = BASE, kept: Iterable[str] = ()
    ) -> None:
        self._kept = {os.path.realpath(path) for path in kept}
        self._hiera = environ.get("HEAT_PUPPET_HIERA_DATADIR") or HIERA
        self._working = [METADATA]
        self._outputs = []
        with contextlib.suppress(OSError):
            for name in os.listdir(base):
                # A directory "<working>.run" is named by SECRET itself, through its working
                # directory.
                if name.startswith("heat-config-") and not name.endswith(".run"):
                    self._working.append(os.path.join(base, name))
                    self._outputs.append(os.path.join(base, name, "outputs"))
        for name, value in environ.items():
            if name.startswith("HEAT_") and os.path.isabs(value):
                if name.endswith("_OUTPUTS"):
                    self._outputs.append(value)
                elif name.endswith("_WORKING") or name == "HEAT_CFN_INIT_LAST_METADATA_DIR":
                    self._working.append(value)

    def remove_outputs(self, key: str) -> None:
        """Remove the outputs of *key*, so that the next run does not return them."""
        for directory in self._own(self._outputs):
            with contextlib.suppress(OSError):
                for name in os.listdir(directory):
                    # "<id>.<output>"; an id has no dot, so another id never matches.
                    if name.startswith(key + "."):
                        _remove(os.path.join(directory, name))

    def remove_secrets(self, record: Record) -> None:
        """Remove files that may hold inputs of *record*'s deployment; its hook could not."""
        self._remove_named(SECRET, record.key)
        # Hiera's file has the name of the deployment, not its id. With a slash it could be any
        # path.
        if record.group == "puppet" and record.name and "/" not in record.name:
            with contextlib.suppress(ValueError):
                _remove(os.path.join(self._hiera, f"heat_config_{record.name}.json"))

    def remove(self, key: str) -> None:
        """Remove all files that hooks have left of *key*."""
        self.remove_outputs(key)
        self._remove_named(SECRET + CONFIGS, key)

    def _remove_named(self, names: Iterable[str], key: str) -> None:
        for directory in self._own(self._working):
            for name in names:
                _remove(name.format(directory=directory.rstrip("/"), key=key))

    def _own(self, directories: list[str]) -> list[str]:
        # An environment variable may name the state directory, whose "<id>.json" must stay.
        return [path for path in directories if os.path.realpath(path) not in self._kept]


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except IsADirectoryError:
        import shutil  # slow to import, and hardly ever needed

        shutil.rmtree(path, ignore_errors=True)
    except OSError:
        return
