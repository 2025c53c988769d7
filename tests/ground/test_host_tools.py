"""hotplate.host_tools: the names of missing programs and their packages."""

import pytest

from hotplate.errors import HostError
from hotplate.host_tools import PACKAGES, find_tool
from hotplate.image import preflight
from hotplate.testbed import host_probes


def test_installed_program_is_found():
    assert find_tool("sh").startswith("/")


@pytest.mark.parametrize(
    ("name", "package"), [("qemu-img", "qemu-utils"), ("no-such-tool", "no-such-tool")]
)
def test_missing_program_is_named_with_its_package(monkeypatch, tmp_path, name, package):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(HostError, match=f'the program "{name}" was not found') as caught:
        find_tool(name)
    assert caught.value.hint == f"apt-get install --no-install-recommends {package}"


def test_each_looked_up_program_has_a_package():
    element_tools = {name for names in preflight.ELEMENT_TOOLS.values() for name in names}
    assert {*preflight.TOOLS, *element_tools, *(each.name for each in host_probes.TOOLS)} <= {
        *PACKAGES
    }
