"""What happens when something breaks; run by: pytest --image IMAGE."""

from hotplate.timing.deadline import Deadline


def test_signal_is_sent_again(server, cloud):
    with cloud.fault(endpoint="cfn", kind="status", status=500, count=3, method="POST"):
        done = server.deploy(group="script", config="#!/bin/sh\necho once >> /root/runs\n").wait()
    assert done.status == "COMPLETE", done
    assert len(done.signals) >= 4
    assert server.copy_out("/root/runs") == b"once\n"


def test_link_is_cut_while_the_hook_runs(server):
    deployment = server.deploy(group="script", config="#!/bin/sh\nsleep 2\n")
    server.console.wait_for(r"heat-config: started", Deadline(60, "the hook to start"))
    server.block()
    server.console.wait_for(r"heat-config: finished", Deadline(60, "the hook to end"))
    server.unblock()
    assert deployment.wait().status == "COMPLETE", deployment


def test_power_is_cut_while_the_hook_runs(server):
    deployment = server.deploy(group="script", config="#!/bin/sh\nsleep 600\n")
    server.console.wait_for(r"heat-config: started", Deadline(60, "the hook to start"))
    server.crash()
    server.start()
    assert deployment.wait().status == "FAILED"
    assert "interrupted" in deployment.outputs["deploy_stderr"]
