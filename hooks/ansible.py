#!/usr/bin/python3 -IS
"""Heat hook "ansible": the config is a playbook; run it here, the inputs as typed variables."""

import os
import sys

sys.path.insert(0, os.environ.get("HEAT_CONFIG_LIB", "/usr/libexec/heat-config/lib"))
from heat_config import files, hook, tools, values

WORKING = "/var/lib/heat-config/heat-config-ansible"
OUTPUTS = "/var/lib/heat-config/heat-config-ansible/outputs"
#: The comma makes it a list of hosts; without one it names an inventory file.
HERE = "localhost,"
OLDEST = (2, 9)


def environment(deployment: hook.Deployment, inventory: str) -> dict[str, str]:
    """Return Ansible's environment; variables set by an administrator stay."""
    made = tools.environment()
    plugins = tools.joined(deployment, "callback_plugins", os.pathsep)
    if plugins:
        made["ANSIBLE_CALLBACK_PLUGINS"] = plugins
    # Modules log their arguments, and so the inputs, to the journal by default.
    made.setdefault("ANSIBLE_NO_TARGET_SYSLOG", "True")
    made.setdefault("ANSIBLE_NOCOLOR", "True")
    made.setdefault("ANSIBLE_RETRY_FILES_ENABLED", "False")
    made.setdefault("ANSIBLE_PYTHON_INTERPRETER", "auto_silent")
    if inventory == HERE:
        # Otherwise a play without "connection: local" connects to this host through ssh.
        made.setdefault("ANSIBLE_TRANSPORT", "local")
    return made


@hook.main
def main(deployment: hook.Deployment) -> hook.Response:
    """Write playbook and variables to private files, run it, and return its output."""
    playbook = tools.text_config(deployment)
    if not playbook.strip():
        return hook.Response("The playbook is empty; nothing was done.\n")
    ansible = tools.find(
        "Ansible",
        ["ansible-playbook"],
        setting="HEAT_ANSIBLE_CMD",
        hint="Build the image with the element heat-config-ansible.",
    )
    work = hook.workspace(deployment, env="HEAT_ANSIBLE_WORKING", default=WORKING)
    outputs = hook.workspace(deployment, env="HEAT_ANSIBLE_OUTPUTS", default=OUTPUTS)
    inventory = os.environ.get("HEAT_ANSIBLE_INVENTORY") or HERE
    chosen = tools.joined(deployment, "inventory", ",")
    if chosen:
        inventory = os.path.join(work.directory, chosen)

    file = work.path("_playbook.yaml")
    hook.write_file(file, playbook)
    # The later one wins: an input may replace the first of our own, but not the last.
    variables = {
        "heat_config_id": deployment.id,
        **deployment.inputs,
        "heat_outputs_path": outputs.path(),
    }
    values_file = work.path("_variables.json")
    argv = [ansible, "-i", inventory]
    for option, argument in (
        ("modulepath", "--module-path"),
        ("skip_tags", "--skip-tags"),
        ("tags", "--tags"),
    ):
        given = tools.joined(deployment, option, os.pathsep if option == "modulepath" else ",")
        if given:
            argv += [argument, given]
    # In a file: all users can read a command line in /proc.
    argv += [file, "--extra-vars", "@" + values_file]
    try:
        hook.write_file(values_file, values.encode(variables))
        result = hook.run(argv, env=environment(deployment, inventory), cwd=work.directory)
    finally:
        files.remove(values_file)  # it may hold credentials
    late = tools.age("Ansible", ansible, OLDEST) if result.status else ""
    return hook.Response(
        result.stdout,
        result.stderr + late,
        result.status,
        hook.file_outputs(deployment, outputs.directory),
    )
