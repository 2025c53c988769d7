"""Load of many agents: 200 that poll once a second, with signatures, for a minute.

    python tests/cloud/bench_load.py [AGENTS [SECONDS [SERVERS]]]

The agents run in a process of their own.  Prints one line of JSON, times in milliseconds; a
benchmark, so nothing is asserted.
"""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

sys.path.insert(0, str(Path(__file__).parent))


def agents(plan: dict[str, Any]) -> dict[str, Any]:
    """Poll according to ``plan``; return the figures."""
    seconds: list[float] = []
    errors: list[str] = []

    def agent(number: int) -> None:
        query = plan["queries"][number % len(plan["queries"])]
        due = plan["start"] + number / plan["agents"]
        while due < plan["start"] + plan["seconds"]:
            time.sleep(max(0.0, due - time.time()))
            # An agent's wait begins when its poll is due, not when it gets to run.
            begun = time.monotonic()
            try:
                connection = http.client.HTTPConnection("127.0.0.1", query["port"], timeout=30)
                connection.request("GET", query["path"], headers={"Host": query["host"]})
                answer = connection.getresponse()
                if answer.status != 200 or b"<Metadata>" not in answer.read():
                    errors.append(str(answer.status))
                connection.close()
            except OSError as error:
                errors.append(repr(error))
            seconds.append(time.monotonic() - begun)
            due += 1

    threads = [threading.Thread(target=agent, args=(n,)) for n in range(plan["agents"])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds.sort()
    figures = {
        f"p{part}": round(1000 * seconds[int(len(seconds) * part / 100) - 1], 1)
        for part in (50, 95, 99, 100)
    }
    return {"requests": len(seconds), "errors": len(errors), "first_error": errors[:1], **figures}


def main(count: int, length: int, servers: int) -> None:
    """Start a cloud with ``servers`` servers and let ``count`` agents poll it."""
    from recording_cloud import RecordingCompute, Stacks
    from test_software_config import TEMPLATE, booted
    from wire_guest import guest, signed_poll

    from hotplate.cloud.cloud import Cloud
    from hotplate.events.log import EventLog

    compute = RecordingCompute()
    begun = time.monotonic()
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        cloud = stack.enter_context(Cloud(directory=directory, compute=compute, events=EventLog()))
        ready = time.monotonic() - begun
        stacks = Stacks(cloud)
        queries = []
        for _ in range(servers):
            stack_id = stacks.create(TEMPLATE)
            vm = stack.enter_context(guest(cloud, booted(stacks, compute, stack_id)))
            cfn = vm.cfn_init_data()["os-collect-config"]["cfn"]
            path = f"/v1/?{urlencode(signed_poll(cfn))}"
            queries.append({"port": vm.ports[8000], "path": path, "host": "169.254.169.254:8000"})
        plan = {
            "agents": count,
            "seconds": length,
            "start": time.time() + 2,
            "queries": queries,
        }
        done = subprocess.run(
            [sys.executable, __file__, "--agents"],
            input=json.dumps(plan),
            capture_output=True,
            text=True,
            check=True,
        )
        print(json.dumps({"cloud_ready_s": round(ready, 2), **json.loads(done.stdout)}))


if __name__ == "__main__":
    if sys.argv[1:] == ["--agents"]:
        print(json.dumps(agents(json.load(sys.stdin))))
    else:
        given = [int(text) for text in sys.argv[1:]]
        main(*(given + [200, 60, 4][len(given) :]))
