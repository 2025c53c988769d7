"""Run by: pytest --image IMAGE."""

UNIT = """\
#!/bin/sh
systemd-run --unit=greeter python3 -m http.server --directory /etc 8080
"""


def test_a_service_that_a_script_starts(server):
    server.deploy(group="script", config=UNIT).wait()
    server.wait_for_unit("greeter.service")
    server.wait_for_open_port(8080)
    server.wait_for_file("/run/systemd/transient/greeter.service")

    fetch = "import urllib.request as r; print(r.urlopen('http://localhost:8080/hostname').read())"
    server.succeed(["python3", "-c", fetch])

    server.succeed("systemctl stop greeter.service")
    server.wait_until_fails(["python3", "-c", fetch])
    server.fail("systemctl is-active greeter.service")
