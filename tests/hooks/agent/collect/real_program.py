"""Run the real os-collect-config repeatedly in forks, importing it only once.

Each line of stdin is a JSON object for one run: argv, env, cwd, stdout, stderr (files). The program
file is executed in a fork, and its exit status is printed.
"""

import json
import os
import runpy
import sys
import traceback

import os_collect_config.collect


def become(run):
    os.chdir(run["cwd"])
    os.environ.clear()
    os.environ.update(run["env"])
    for target, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(run[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), target)
    sys.stdin.close()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.argv = run["argv"]
    # The default was bound to sys.argv at import.
    os_collect_config.collect.main.__defaults__ = (sys.argv, None)
    status = 0
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as end:
        status = end.code
        if status is not None and not isinstance(status, int):
            print(status, file=sys.stderr)
            status = 1
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit((status or 0) & 0xFF)


for line in sys.stdin:
    pid = os.fork()
    if pid == 0:
        become(json.loads(line))
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
