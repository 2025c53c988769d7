"""The hook in a guest; run by: pytest --image IMAGE.

The hook is copied in, over one that the image has, so that any image with the runner will do.
"""

from pathlib import Path

import pytest

HOOK = Path(__file__).parents[1] / "hooks" / "tmpfiles.py"


@pytest.fixture
def ready(server):
    server.push_hook(HOOK)
    return server


def test_directory_is_made(ready):
    config = "d /srv/app 0750 root root -\nf /srv/app/ready 0640 root root - yes\n"
    done = ready.deploy(group="tmpfiles", config=config, outputs=["applied"]).wait()
    assert done.status == "COMPLETE", done
    assert done.outputs["applied"].endswith(".conf")
    assert ready.host.file("/srv/app").mode == 0o750
    assert ready.host.file("/srv/app/ready").content_string == "yes"


def test_bad_line_fails_the_deployment(ready):
    done = ready.deploy(group="tmpfiles", config="nonsense\n").wait()
    assert done.status == "FAILED"
    assert ".conf:1: " in done.outputs["deploy_stderr"]
