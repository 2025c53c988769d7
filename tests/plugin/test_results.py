"""The report of a run of pytest, and the handling of a lost machine."""

from __future__ import annotations

import re
import stat
import subprocess
import sys
from xml.etree import ElementTree

import pytest

from hotplate.plugin.results import without

# A pool of dummy servers, to test everything around them without a machine.
CONFTEST = """
    from pathlib import Path

    import pytest

    class Server:
        def __init__(self, directory):
            self.directory = directory
            self.deployments = []
            self.lost = self.faulty = self.goes = False

        def has_hook(self, group):
            if group == "gone":
                raise RuntimeError("the guest is gone")
            return group == "script"

        def await_loss(self):
            self.lost = self.goes

        def diagnosis(self):
            return None

        def leave_evidence(self, test, *, problem, diagnosis, whole):
            (self.directory / "report.html").write_text(f"{test}: {problem} {whole}")

    class ServerPool:
        made = 0

        def __init__(self, folder):
            self.folder = folder

        def clear_faults(self):
            pass

        def server(self, *, cold, another):
            ServerPool.made += 1
            print("cold" if cold else "restored", "before another" if another else "")
            directory = self.folder / f"server-{ServerPool.made}"
            directory.mkdir()
            return Server(directory)

        def give_back(self, server):
            print("given back", server.directory.name)

    @pytest.fixture(scope="session")
    def _supply(request, image):
        from hotplate.plugin.plugin import _folder
        return ServerPool(_folder(request.config))
"""
TESTS = """
    import pytest

    @pytest.mark.parametrize("word", ["a", "<b>"])
    def test_word(server, word):
        pass

    def test_fails_on_db(server, image):
        assert image.path.stem == "web", "this is <db>"

    @pytest.mark.hotplate_groups("puppet")
    def test_of_another_image(server):
        raise AssertionError("it must not come so far")

    def test_without_an_image():
        pass
"""
LOST = """
    from hotplate.errors import MachineLostError

    tries = []

    def test_lost_once(server):
        tries.append(server)
        server.lost = len(tries) == 1
        assert not server.lost, "the first machine went away"

    def test_lost_always(server):
        server.lost = True
        raise AssertionError("gone again")

    def test_lost_in_a_moment(server):
        tries.append("moment")
        server.goes = tries.count("moment") == 1
        if server.goes:
            raise MachineLostError("the guest's shell has ended, and its machine ends")

    def test_an_assertion(server):
        tries.append("assertion")
        assert tries.count("assertion") > 1
"""

NEXT = """
    import pytest

    def test_first(server):
        pass

    def test_second(server):
        pass

    def test_without_a_server(image):
        pass

    def test_third(server):
        pass

    @pytest.mark.hotplate_cold
    def test_cold(server):
        pass

    def test_last(server):
        pass
"""

NEEDS = """
    import pytest

    @pytest.mark.hotplate_cold
    def test_cold(server):
        print("it is cold")

    @pytest.mark.hotplate_groups("script")
    def test_script(server):
        pass

    @pytest.mark.hotplate_groups("script", "puppet", "salt")
    def test_puppet(server):
        raise AssertionError("it must not come so far")

    @pytest.mark.hotplate_groups("gone")
    def test_gone(server):
        raise AssertionError("it must not come so far")

    class TestAll:
        pytestmark = pytest.mark.hotplate_groups("ansible")

        def test_ansible(self, server):
            raise AssertionError("it must not come so far")
"""

ABILITIES = """
    import pytest

    @pytest.mark.hotplate_needs("power", "links")
    def test_power(server):
        pass

    @pytest.mark.hotplate_needs("power", "kernel", "disk")
    def test_kernel(server):
        raise AssertionError("it must not come so far")

    @pytest.mark.hotplate_needs("kernel")
    def test_without_an_image():
        pass
"""


@pytest.fixture
def images(tmp_path, raw_image):
    return [raw_image(tmp_path / "web.raw"), raw_image(tmp_path / "db.img")]


def run(project, images, *options, **files):
    project.makeconftest(CONFTEST)
    project.makepyfile(**files)
    return project.runpytest_inprocess(*(f"--image={each}" for each in images), *options)


def last(project):
    return (project.path / "artifacts" / "last").resolve()


def test_report_is_a_table_of_tests_by_images(project, images):
    done = run(project, images, test_it=TESTS)
    done.assert_outcomes(passed=6, failed=1, skipped=2)
    page = last(project) / "report.html"
    done.stdout.fnmatch_lines([f"hotplate: what was seen, test by test: {page}"])
    assert stat.S_IMODE(page.stat().st_mode) == 0o600
    text = page.read_text()
    assert "<th>web</th><th>db</th>" in text
    assert "5 passed, 1 failed, 2 skipped" in text
    assert "test_without_an_image" not in text
    rows = re.findall(r"<tr><td>(.*?)</td>(.*?)</tr>", text)
    assert [name.partition("::")[2] for name, _ in rows] == [
        "test_word[a]",
        "test_word[&lt;b&gt;]",
        "test_fails_on_db",
        "test_of_another_image",
    ]
    assert rows[2][1].count('class="yes"') == rows[2][1].count('class="no"') == 1
    assert rows[3][1].count('class="off"') == 2
    links = re.findall(r'href="([^"]+)"', text)
    # One link for each test with a server; all exist, and none leaves the folder.
    assert len(links) == 6
    assert all((page.parent / link).is_file() for link in links)
    assert not any(link.startswith(("/", "..")) for link in links)


def test_problem_and_keep_option_reach_the_evidence(project, images):
    run(project, images[1:], test_it=TESTS)
    left = [path.read_text() for path in sorted(last(project).glob("server-*/report.html"))]
    assert left[0] == "test_word[db-a]:  False"
    assert "test_fails_on_db[db]: AssertionError: this is <db>" in left[2]


def test_report_is_not_written_when_no_test_had_a_server(project, images):
    done = run(project, images, test_it="def test_one(image):\n    pass\n")
    done.assert_outcomes(passed=2)
    assert not (project.path / "artifacts").exists()


def test_lost_machine_is_retried_once_and_an_assertion_never(project, images):
    done = run(project, images[:1], "--junit-xml=junit.xml", test_lost=LOST)
    done.assert_outcomes(passed=2, failed=2)
    text = done.stderr.str()
    assert (
        text.count("the machine was lost, which says nothing about the image; trying once more")
        == 3
    )
    cases = {
        case.get("name"): case
        for case in ElementTree.parse(project.path / "junit.xml").iter("testcase")
    }
    assert len(cases) == 4
    failures = {
        name: [
            each.get("value") for each in case.iter("property") if "first_try" in each.get("name")
        ]
        for name, case in cases.items()
    }
    assert len(failures["test_lost_once[web]"]) == 1
    assert len(failures["test_lost_always[web]"]) == 1
    assert len(failures["test_lost_in_a_moment[web]"]) == 1
    assert failures["test_an_assertion[web]"] == []
    assert 'title="the machine was lost' in (last(project) / "report.html").read_text()


def test_markers_skip_tests_without_their_hooks(project, images):
    done = run(project, images[:1], "-rs", "-s", "--strict-markers", test_needs=NEEDS)
    done.assert_outcomes(passed=2, skipped=2, errors=1)
    done.stdout.fnmatch_lines(["*cold*", "*it is cold*", "*restored*"])
    text = done.stdout.str()
    assert "the image has no hook for puppet, salt" in text
    assert "the image has no hook for ansible" in text
    # Also after a server that did not even answer.
    assert [text.count(f"given back server-{number}\n") for number in range(1, 6)] == [1] * 5


def test_next_server_is_announced_to_the_pool_of_its_image(project, images):
    done = run(project, images, "-s", test_next=NEXT)
    done.assert_outcomes(passed=12)
    # All tests of the first image come first.
    assert (
        re.findall("(?:restored|cold)(?: before another)?", done.stdout.str())
        == [
            "restored before another",
            "restored",
            "restored",
            "cold before another",
            "restored",
        ]
        * 2
    )


def test_tests_that_need_more_than_a_container_are_skipped_and_counted(project, images):
    words = ("-rs", "-s", "--strict-markers", "--machine", "container")
    done = run(project, images[:1], *words, test_abilities=ABILITIES)
    done.assert_outcomes(passed=2, skipped=1)
    reason = (
        "the test needs a machine with a kernel of its own and a machine with a disk of its own; "
        "this server is a container"
    )
    assert reason in done.stdout.str()
    # Skipped before a server was made.
    assert "server-2" not in done.stdout.str()
    page = (last(project) / "report.html").read_text()
    assert "1 passed, 1 skipped" in page
    assert f'title="{reason}"' in page


def test_qemu_has_all_abilities(project, images):
    done = run(project, images[:1], "--machine", "qemu", test_abilities=ABILITIES)
    done.assert_outcomes(passed=2, failed=1)


def test_unknown_ability_is_wrong_usage(project, images):
    test = """
        import pytest

        @pytest.mark.hotplate_needs("kernels")
        def test_typo(server):
            pass
    """
    done = run(project, images[:1], test_typo=test)
    assert done.ret == 2
    text = done.stdout.str() + done.stderr.str()
    assert 'test_typo[web] needs "kernels", and the marker hotplate_needs takes: power, ' in text


def test_xdist_workers_share_one_folder(project, images):
    pytest.importorskip("xdist", reason="pytest-xdist is not installed")
    project.makeini("[pytest]\naddopts = -p no:cacheprovider --import-mode=importlib\n")
    done = run(project, images, "-n2", test_it=TESTS)
    done.assert_outcomes(passed=6, failed=1, skipped=2)
    assert len(list((project.path / "artifacts").iterdir())) == 2
    assert {path.name for path in last(project).iterdir()} == {"gw0", "gw1", "report.html"}
    links = re.findall(r'href="([^"]+)"', (last(project) / "report.html").read_text())
    assert len(links) == 6
    assert all((last(project) / link).is_file() for link in links)


@pytest.mark.parametrize(
    ("nodeid", "image", "name"),
    [
        ("a.py::test_x", "web", "a.py::test_x"),
        ("a.py::test_x[web]", "web", "a.py::test_x"),
        ("a.py::test_x[web-1-a]", "web", "a.py::test_x[1-a]"),
        ("a.py::test_x[1-web]", "web", "a.py::test_x[1]"),
        ("a.py::test_x[1-web-a]", "web", "a.py::test_x[1-a]"),
        ("a.py::test_x[webs-web]", "web", "a.py::test_x[webs]"),
        ("a.py::test_x[my-web.v2-[x]]", "my-web.v2", "a.py::test_x[[x]]"),
    ],
)
def test_without_removes_the_image_from_a_name(nodeid, image, name):
    assert without(nodeid, image) == name


WRITES = """
    from types import SimpleNamespace

    def test_a_hook_crashes(server):
        outputs = {"deploy_stderr": "boom in the hook", "deploy_stdout": "begin"}
        server.deployments.append(SimpleNamespace(status="FAILED", group="mine", outputs=outputs))
        print("forty lines of something else")
        raise AssertionError
"""


def test_output_of_a_failed_hook_precedes_captured_text(project, images):
    text = run(project, images[:1], test_it=WRITES).stdout.str()
    assert "what the hook wrote, mine" in text
    assert text.index("boom in the hook") < text.index("forty lines")


MAKES_A_STACK = """
    from types import SimpleNamespace

    import pytest

    from hotplate.plugin.stack import StackUnderTest

    class Server:
        id = "1"

        def __init__(self, directory):
            self.directory = directory

        def leave_evidence(self, test, *, problem, whole):
            (self.directory / "report.html").write_text(problem)

    class Made:
        def __init__(self, directory):
            self.server = Server(directory)

        def running_servers(self):
            return [self.server]

        def written_by_failed(self):
            return [("what the hook wrote, mine", "boom in the hook")]

        def forget(self):
            print("the stack is forgotten")

    @pytest.fixture
    def _testbed(image, tmp_path, monkeypatch):
        monkeypatch.setattr(StackUnderTest, "begin", lambda *_: Made(tmp_path))
        return SimpleNamespace(cloud=SimpleNamespace(faults=set()))

    def test_fails(stack, tmp_path):
        stack("web.yaml")
        print("forty lines of something else")
        raise AssertionError("the page is empty")

    def test_passes(stack, tmp_path):
        stack("web.yaml")
"""


def test_failed_test_of_a_stack_shows_its_hooks_and_leaves_evidence_of_its_servers(project, images):
    result = run(project, images[:1], f"--basetemp={project.path / 'tmp'}", test_it=MAKES_A_STACK)
    result.assert_outcomes(passed=1, failed=1)
    text = result.stdout.str()
    assert text.index("boom in the hook") < text.index("Captured stdout call")
    assert "evidence of test_fails[web] is in" in text
    assert text.count("the stack is forgotten") == 1
    # pytest itself adds a link to the newest directory of a name.
    (left,) = {each.resolve() for each in (project.path / "tmp").glob("*/report.html")}
    assert "the page is empty" in left.read_text()


def test_plugin_does_not_load_the_report():
    """Each run of pytest loads the plug-in, most without a test of an image."""
    program = "import hotplate.plugin.plugin, sys; sys.exit('hotplate.report.html' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
