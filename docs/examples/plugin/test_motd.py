"""Run by: pytest --image IMAGE."""

SCRIPT = """\
#!/bin/sh
echo "$greeting" > /etc/motd
wc -c < /etc/motd > "$heat_outputs_path.size"
"""


def test_script_writes_motd(server):
    done = server.deploy(
        group="script", config=SCRIPT, inputs={"greeting": "hello"}, outputs=["size"]
    ).wait()
    assert done.status == "COMPLETE", done
    assert done.outputs["size"].strip() == "6"
    assert server.host.file("/etc/motd").contains("hello")


def test_every_test_has_a_server_of_its_own(server):
    assert not server.host.file("/etc/motd").contains("hello")


def test_failing_script_says_why(server):
    done = server.deploy(group="script", config="#!/bin/sh\necho no >&2\nexit 3\n").wait()
    assert done.status == "FAILED"
    assert done.outputs["deploy_status_code"] == 3
    assert done.outputs["deploy_stderr"] == "no\n"


def test_update_and_delete(server):
    one = "#!/bin/sh\necho one >> /root/seen\n"
    gone = "#!/bin/sh\necho gone >> /root/seen\n"
    component = server.deploy(
        group="component",
        config=[
            {"actions": ["CREATE", "UPDATE"], "tool": "script", "config": one},
            {"actions": ["DELETE"], "tool": "script", "config": gone},
        ],
    ).wait()
    assert component.status == "COMPLETE", component
    assert component.delete().wait().status == "COMPLETE", component
    assert server.copy_out("/root/seen") == b"one\ngone\n"
