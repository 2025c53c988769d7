"""The pytest plug-in in another repository, as far as no machine is needed."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys

import pytest

from hotplate.heat_releases import installed_release

SBIN = "/usr/sbin:/sbin:/usr/bin:/bin"
TESTS = """
    import pytest

    @pytest.mark.parametrize("number", range(30))
    def test_numbered(number):
        pass

    @pytest.mark.parametrize("word", ["a/b", "ä", "", "x y", "x::y"])
    def test_words(word):
        pass

    class TestClass:
        def test_in_a_class(self):
            pass
"""
USES_IMAGE = """
    def test_one(image):
        assert image.path.exists()

    def test_two(image):
        pass

    def test_none():
        pass
"""


def names(project, *options: str) -> list[str]:
    """Return the ids of the tests that pytest would run."""
    # Collecting needs no process of its own, whose start takes a second.
    done = project.runpytest_inprocess("--collect-only", "-q", *options)
    return [line for line in done.outlines if "::" in line]


def test_help_lists_all_options(project):
    done = project.runpytest_subprocess("--help")
    text = done.stdout.str()
    for option in ("image", "cloud-image", "cold", "keep", "pause-on-fail", "artifacts", "shard"):
        assert f" --{option}" in text
        assert f" --hotplate-{option}" in text
    assert "--hotplate-require-image" in text
    assert "hotplate_require_image" in text


OWN_OPTIONS = """
    import pytest

    def pytest_addoption(parser):
        parser.addoption("--image", help="of the moon")
        parser.addoption("--keep", action="store_true")
        parser.addoption("--cold", action="store_true")
        parser.addoption("--shard", default="all")
        parser.addoption("--artifacts", dest="somewhere")

    @pytest.fixture
    def moon(pytestconfig):
        return pytestconfig
"""
OWN_TESTS = """
    def test_moon(moon):
        assert moon.getoption("--image") == "luna.png"
        assert moon.getoption("image") == "luna.png"
        assert moon.getoption("--shard") == "all"
        assert moon.getoption("keep") is True
        assert moon.getoption("somewhere") == "here"
        assert moon.getoption("--pause-on-fail") is False
"""


@pytest.mark.parametrize("joined", ["=", " "])
def test_repository_keeps_its_own_options(project, joined):
    project.makeconftest(OWN_OPTIONS)
    project.makepyfile(test_it=OWN_TESTS)
    words = f"--keep --image{joined}luna.png --artifacts{joined}here".split()
    project.runpytest_inprocess(*words).assert_outcomes(passed=1)


def test_long_names_work_beside_a_repositorys_options(project, tmp_path, raw_image):
    image = raw_image(tmp_path / "web.raw")
    project.makeconftest(OWN_OPTIONS)
    project.makepyfile(test_it=OWN_TESTS, test_image=USES_IMAGE)
    done = project.runpytest_inprocess(
        *("--keep", "--image", "luna.png", "--artifacts=here", f"--hotplate-image={image}")
    )
    done.assert_outcomes(passed=4)
    shards = [
        len(names(project, "--hotplate-image", str(image), "--hotplate-shard", f"hash:{part}/2"))
        for part in (1, 2)
    ]
    assert sum(shards) == 4


@pytest.mark.parametrize("option", ["--cpu=x86-64-v2", "--hotplate-cpu=x86-64-v2"])
def test_cpu_option_is_a_setting_of_the_run(project, option):
    project.makepyfile(
        test_it="""
        def test_cpu(hotplate_settings):
            assert hotplate_settings.cpu == "x86-64-v2"
        """
    )
    project.runpytest_inprocess(option).assert_outcomes(passed=1)


def test_another_plugin_keeps_its_own_options(project):
    project.makepyfile(other_plugin=OWN_OPTIONS, test_it=OWN_TESTS)
    done = project.runpytest_subprocess(
        *("-p", "other_plugin", "--keep", "--image=luna.png", "--artifacts=here")
    )
    done.assert_outcomes(passed=1)


def test_conftest_of_testpaths_is_loaded_with_an_image(project, raw_image):
    """An option whose value looks like a test path must not replace the test paths."""
    image = raw_image(project.path / "web.raw")
    project.makeini("[pytest]\naddopts = -p no:cacheprovider -p no:xdist\ntestpaths = suite\n")
    suite = project.mkdir("suite")
    (suite / "conftest.py").write_text(
        "def pytest_addoption(parser):\n    parser.addoption('--colour')\n"
    )
    (suite / "test_it.py").write_text(
        "def test_colour(pytestconfig, image):\n"
        "    assert pytestconfig.getoption('--colour') == 'red'\n"
    )
    done = project.runpytest_inprocess("--image", image.name, "--colour=red")
    done.assert_outcomes(passed=1)


@pytest.mark.parametrize(
    ("name", "how"),
    [
        *(("image", how) for how in ("one word", "two words", "variable", "main")),
        ("hotplate-image", "two words"),
    ],
)
def test_image_path_does_not_select_the_project(
    project, tmp_path, monkeypatch, raw_image, name, how
):
    """pytest finds rootdir and configuration by the test paths (findpaths.determine_setup)."""
    other = tmp_path / "other"
    other.mkdir()
    (other / "pyproject.toml").write_text("[tool.pytest.ini_options]\naddopts = '--no-such'\n")
    (other / "conftest.py").write_text("raise AssertionError('loaded from beside the image')\n")
    image = raw_image(other / "web.raw")
    project.makefile(".py", test_it=USES_IMAGE)
    project.makeconftest("def pytest_report_header(config):\n    return f'ini {config.inipath}'\n")
    words = [f"--{name}={image}"] if how == "one word" else [f"--{name}", str(image)]
    command = [sys.executable, "-m", "pytest", "-v", *words]
    if how == "variable":
        monkeypatch.setenv("PYTEST_ADDOPTS", f"{os.environ['PYTEST_ADDOPTS']} {' '.join(words)}")
        command = command[: -len(words)]
    elif how == "main":
        lines = f"import pytest; raise SystemExit(pytest.main({['-v', *words]!r}))"
        command = [sys.executable, "-c", lines]
    done = project.run(*command)
    assert done.ret == 0
    done.stdout.fnmatch_lines(
        [
            f"ini {project.path}/tox.ini",
            f"rootdir: {project.path}",
            "configfile: tox.ini",
            "test_it.py::test_one?web? PASSED*",
        ]
    )
    assert done.stdout.str().count("test session starts") == 1


def test_help_and_input_work_with_the_image_in_a_separate_word(project, raw_image):
    image = raw_image(project.path / "web.raw").name
    project.makepyfile(test_it="def test_input():\n    assert input() == 'typed'\n")
    done = project.run(
        *(sys.executable, "-m", "pytest", "-s", "--image", image, "test_it.py"), stdin=b"typed\n"
    )
    assert done.ret == 0
    helped = project.runpytest_subprocess("--image", image, "--help")
    assert helped.ret == 0
    assert "--hotplate-image=IMAGE" in helped.stdout.str()


def test_setting_of_another_heat_is_refused_before_a_boot(project, raw_image, monkeypatch):
    image = raw_image(project.path / "web.raw").name
    monkeypatch.setenv("HOTPLATE_HEAT", "26" if installed_release() != 26 else "27")
    project.makepyfile(test_it="def test_one(server):\n    pass\n")
    done = project.runpytest_subprocess("--image", image)
    assert done.ret == 2
    shown = done.stdout.str() + done.stderr.str()
    assert f"this process has Heat {installed_release()}." in shown
    assert "/bin/python -m pytest" in shown
    assert "booting" not in shown


GROUPED = """
    import pytest

    @pytest.mark.xdist_group("a build")
    @pytest.mark.parametrize("number", range(20))
    def test_of_one_build(number):
        pass

    @pytest.mark.xdist_group(name="another")
    @pytest.mark.parametrize("number", range(20))
    def test_of_another(number):
        pass
"""


def test_xdist_group_is_in_one_shard(project):
    project.makepyfile(test_it=GROUPED)
    shards = [names(project, "--shard", f"hash:{part}/2") for part in (1, 2)]
    for name in ("test_of_one_build", "test_of_another"):
        assert sorted(len([each for each in shard if name in each]) for shard in shards) == [0, 20]


def test_every_test_is_in_exactly_one_shard(project):
    project.makepyfile(test_it=TESTS)
    whole = names(project)
    assert len(whole) == 36
    shards = [names(project, "--shard", f"hash:{part}/3") for part in (1, 2, 3)]
    assert sorted(name for shard in shards for name in shard) == sorted(whole)
    assert all(shards)


def test_shard_does_not_depend_on_order_and_selection(project):
    project.makepyfile(test_it=TESTS, test_other=TESTS)
    whole = set(names(project, "--shard", "hash:2/3"))
    alone = set(names(project, "--shard", "hash:2/3", "test_other.py"))
    assert alone == {name for name in whole if name.startswith("test_other.py")}


def test_shard_does_not_depend_on_the_image_path(project, tmp_path, raw_image):
    image = raw_image(tmp_path / "web.raw")
    project.makepyfile(test_it=TESTS)
    plain = names(project, "--shard=hash:1/2", f"--image={image}")
    with_path = names(project, "--shard=hash:1/2", "--image", str(image))
    assert plain == with_path


def test_invalid_shard_is_refused(project):
    project.makepyfile(test_it=TESTS)
    done = project.runpytest_inprocess("--shard", "hash:3/2")
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    done.stderr.fnmatch_lines(['*--shard "hash:3/2" is not of the form hash:M/N with 1 <= M <= N'])
    assert "Traceback" not in done.stderr.str()


def test_images_form_a_matrix_with_names_as_ids(project, tmp_path, raw_image):
    one, two = raw_image(tmp_path / "web.raw"), raw_image(tmp_path / "db.img")
    project.makepyfile(test_it=USES_IMAGE)
    done = project.runpytest_inprocess("-v", f"--image={one}", f"--image={two}")
    done.assert_outcomes(passed=5)
    assert sorted(line.split()[0] for line in done.outlines if " PASSED" in line) == [
        "test_it.py::test_none",
        "test_it.py::test_one[db]",
        "test_it.py::test_one[web]",
        "test_it.py::test_two[db]",
        "test_it.py::test_two[web]",
    ]


def test_images_of_one_name_get_different_ids(project, tmp_path, raw_image):
    images = []
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        images.append(f"--image={raw_image(tmp_path / folder / 'web.raw')}")
    project.makepyfile(test_it=USES_IMAGE)
    assert len(set(names(project, *images))) == 5


def test_tests_of_an_image_are_skipped_without_one(project):
    project.makepyfile(test_it=USES_IMAGE)
    done = project.runpytest_inprocess("-rs")
    done.assert_outcomes(passed=1, skipped=2)
    done.stdout.fnmatch_lines(["*it tests an image, but no --image was given*"])


def test_additional_images_are_given_by_option_or_fixture(project, raw_image):
    raw_image(project.path / "db.raw")
    project.makepyfile(
        test_option="def test_it(cloud_images):\n    assert [*cloud_images] == ['db', 'web']\n",
        test_fixture="""
            import pytest

            @pytest.fixture(scope="session")
            def cloud_images():
                return {"mine": "db.raw"}

            def test_it(cloud_images):
                assert [*cloud_images] == ["mine"]
        """,
    )
    words = ("--cloud-image", "db=db.raw", "--hotplate-cloud-image=web=db.raw")
    project.runpytest_inprocess(*words).assert_outcomes(passed=2)
    done = project.runpytest_inprocess("--cloud-image=db=db.raw", "--cloud-image=db=db.raw")
    assert done.ret == 2
    done.stdout.fnmatch_lines(['*the image name "db" is given twice*'])


@pytest.mark.parametrize("how", ["option", "ini"])
def test_image_can_be_required(project, tmp_path, raw_image, how):
    """A forgotten option must not be a green run."""
    ini = "[pytest]\naddopts = -p no:cacheprovider -p no:xdist --import-mode=importlib\n"
    words = ["--hotplate-require-image"] if how == "option" else []
    project.makeini(ini + ("hotplate_require_image = true\n" if how == "ini" else ""))
    project.makepyfile(test_it=USES_IMAGE)
    done = project.runpytest_inprocess(*words)
    assert done.ret == 2
    assert "an image is required, but none was given (--image=IMAGE)" in done.stdout.str()
    if how == "ini":
        return
    image = raw_image(tmp_path / "web.raw")
    project.runpytest_inprocess(*words, f"--image={image}").assert_outcomes(passed=3)
    # Tests that need no image run without one.
    project.runpytest_inprocess(*words, "-k", "none").assert_outcomes(passed=1, deselected=2)


def test_image_fixture_of_the_tests_is_kept(project):
    project.makepyfile(
        """
        import pytest

        @pytest.fixture(params=["red", "green"])
        def image(request):
            return request.param

        def test_colour(image):
            assert image in ("red", "green")
        """
    )
    done = project.runpytest_inprocess()
    done.assert_outcomes(passed=2)


def test_bad_image_error_is_one_sentence_per_test(project, tmp_path):
    image = tmp_path / "bad.qcow2"
    image.write_text("this is not an image\n" * 100)
    project.makepyfile(
        """
        def test_one(server):
            raise AssertionError("it must not come so far")

        def test_two(server):
            raise AssertionError("it must not come so far")
        """
    )
    done = project.runpytest_inprocess(f"--image={image}")
    done.assert_outcomes(errors=2)
    text = done.stdout.str()
    assert "bad.qcow2" in text
    assert "Traceback" not in text
    assert "hotplate/image/inspect.py" not in text
    # Each is reported once, not as the context of another.
    assert "During handling" not in text
    assert done.ret == 1


def test_missing_image_is_a_usage_error(project, tmp_path):
    project.makepyfile(test_it="def test_one(server):\n    pass\n")
    done = project.runpytest_inprocess(f"--image={tmp_path / 'none.qcow2'}")
    assert done.ret == 2
    assert "none.qcow2" in done.stdout.str()
    assert "During handling" not in done.stdout.str()
    assert "Traceback" not in done.stdout.str() + done.stderr.str()


OUTCOMES = """
    import pytest
    from hotplate.errors import HostError, ImageError, MachineLostError

    @pytest.fixture
    def error(request):
        return {"host": HostError, "image": ImageError, "lost": MachineLostError}[request.param]

    @pytest.mark.parametrize("error", [NAMES], indirect=True)
    def test_it(image, error):
        raise error("it went wrong")
"""


@pytest.mark.parametrize(
    ("raised", "status"), [("'host', 'lost'", 3), ("'host', 'lost', 'image'", 1)]
)
def test_status_and_junit_have_the_outcome(project, tmp_path, raw_image, raised, status):
    image = raw_image(tmp_path / "web.raw")
    project.makepyfile(test_it=OUTCOMES.replace("NAMES", raised))
    done = project.runpytest_inprocess(f"--image={image}", "--junit-xml=junit.xml")
    assert done.ret == status
    words = {"host": "host error", "lost": "machine lost", "image": "failed"}
    text = (project.path / "junit.xml").read_text()
    for name in words:
        expected = f'<property name="hotplate_outcome" value="{words[name]}"'
        assert (expected in text) is (f"'{name}'" in raised)


def test_failure_without_an_image_keeps_exit_status_1(project, tmp_path, raw_image):
    image = raw_image(tmp_path / "web.raw")
    project.makepyfile(
        test_it=OUTCOMES.replace("NAMES", "'host'"), test_own="def test_own():\n    assert 0\n"
    )
    assert project.runpytest_inprocess(f"--image={image}").ret == 1


def test_wrong_setting_is_refused_with_its_source(project, tmp_path, monkeypatch, raw_image):
    monkeypatch.setenv("HOTPLATE_MEMORY", "lots")
    project.makepyfile(test_it="def test_one(server):\n    pass\n")
    done = project.runpytest_inprocess(f"--image={raw_image(tmp_path / 'web.raw')}")
    assert done.ret == 2
    assert 'setting "memory" from HOTPLATE_MEMORY is "lots"' in done.stdout.str()
    assert "Traceback" not in done.stdout.str() + done.stderr.str()


def test_unwritable_cache_error_is_one_sentence(project, tmp_path, monkeypatch, raw_image):
    where = "/dev/null/below"
    monkeypatch.setenv("HOTPLATE_CACHE", where)
    project.makepyfile(test_it="def test_one(server):\n    pass\n")
    done = project.runpytest_subprocess(f"--image={raw_image(tmp_path / 'web.raw')}")
    done.assert_outcomes(errors=1)
    text = done.stdout.str()
    assert where in text
    assert "HOTPLATE_CACHE" in text
    assert "Traceback" not in text


def test_unwritable_artifacts_error_is_one_sentence(project, tmp_path, raw_image):
    project.makepyfile(test_it="def test_one(server):\n    pass\n")
    image = raw_image(tmp_path / "web.raw")
    done = project.runpytest_inprocess(f"--image={image}", "--artifacts", "/proc/nowhere")
    done.assert_outcomes(errors=1)
    assert "/proc/nowhere" in done.stdout.str()
    assert "Traceback" not in done.stdout.str()


POOL = """
    import contextlib
    from hotplate.plugin import pool

    @contextlib.contextmanager
    def played(image, settings, folder, **_):
        cloud = folder / "web-1" / "cloud"
        cloud.mkdir(parents=True)
        for name in ("heat.db", "heat.db-wal", "heat.log"):
            (cloud / name).touch()
        yield None

    pool.open_pool = played
"""


@pytest.mark.parametrize(("words", "left"), [((), 0), (("--keep",), 2)])
def test_cloud_databases_are_kept_only_with_keep(project, raw_image, words, left):
    image = raw_image(project.path / "web.raw")
    project.makeconftest(POOL)
    project.makepyfile(test_it="def test_one(_supply):\n    raise AssertionError\n")
    project.runpytest_subprocess(f"--image={image}", *words).assert_outcomes(failed=1)
    cloud = project.path / "artifacts" / "last" / "web-1" / "cloud"
    assert len([*cloud.glob("*.db*")]) == left
    assert (cloud / "heat.log").exists()


def test_test_for_a_missing_hook_boots_no_server(project, tmp_path, raw_image):
    """The manifest beside the image shows it; this image could not even be booted."""
    image = raw_image(tmp_path / "web.raw")
    digest = hashlib.sha256(image.read_bytes()).hexdigest()
    manifest = {"sha256": digest, "elements": {"heat-config-script": "", "vm": ""}}
    (tmp_path / "web.manifest.json").write_text(json.dumps(manifest))
    project.makepyfile(
        test_it="""
        import pytest

        @pytest.mark.hotplate_groups("script", "puppet")
        def test_puppet(server):
            raise AssertionError("it must not come so far")
        """
    )
    done = project.runpytest_inprocess(f"--image={image}", "-rs")
    done.assert_outcomes(skipped=1)
    assert "the image has no hook for puppet, by web.manifest.json" in done.stdout.str()


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("mke2fs", path=SBIN) is None, reason="needs mke2fs on this host")
def test_image_without_agent_is_named_and_not_waited_for(project, tmp_path):
    """It would never reach "agent idle and polling"; a stack needs no guest of ours."""
    for each in ("etc", "usr"):
        (tmp_path / "root" / each).mkdir(parents=True)
    command = [
        "mke2fs",
        "-q",
        "-F",
        "-t",
        "ext4",
        "-d",
        tmp_path / "root",
        tmp_path / "web.raw",
        "4M",
    ]
    subprocess.run(command, check=True, env={"PATH": SBIN})
    for suffix in ("vmlinuz", "initrd"):
        (tmp_path / f"web.{suffix}").write_bytes(b"nothing that boots")
    project.makepyfile(
        test_it="""
        def test_cloud(cloud):
            assert list(cloud.heat().stacks.list()) == []
        """
    )
    done = project.runpytest_subprocess(f"--image={tmp_path / 'web.raw'}", timeout=600)
    done.assert_outcomes(passed=1)
    printed = done.stderr.str() + done.stdout.str()
    assert "web.raw has no agent: each test boots its server" in printed
    assert "to restore it from then on" not in printed


@pytest.mark.root
def test_full_disk_is_a_host_error(project, tmp_path, raw_image):
    image = raw_image(tmp_path / "web.raw")
    (tmp_path / "full").mkdir()
    project.makepyfile(test_it="def test_one(server):\n    pass\n")
    mount = (
        f"mount -t tmpfs -o size=200k none {tmp_path}/full && "
        f"{{ head -c 1M /dev/zero > {tmp_path}/full/filling 2> /dev/null || true; }} && exec "
    )
    pytest_line = f"{sys.executable} -m pytest --image={image} --artifacts={tmp_path}/full/a --cold"
    done = project.run("unshare", "--mount", "sh", "-c", mount + pytest_line)
    text = done.stdout.str()
    assert "host error: " in text
    assert "Traceback" not in text
    assert done.ret == 3, text
