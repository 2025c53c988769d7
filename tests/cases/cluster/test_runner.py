"""Played cases on the workers of a real Dask cluster: results, and leftovers."""

from __future__ import annotations

import json
import re
import signal
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path

import played_cases
import pytest
from hotplate_command import hotplate
from played_cases import Played, runs, wait_until
from played_cluster import Cluster, cluster

from hotplate.image import image_set

TEMPLATE = "heat_template_version: 2018-08-31\nresources: {}\n"


@pytest.fixture(scope="module")
def on_two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster with two workers, in the folder of the played command."""
    folder = Played(tmp_path_factory.mktemp("cluster")).folder
    with cluster(folder) as started:
        started.start_workers("one", "two")
        yield started


@pytest.fixture
def played(on_two: Cluster) -> Played:
    """The command in that folder, whose images have not been tested yet."""
    for each in on_two.folder.glob("*.tries"):
        each.unlink()
    return Played(on_two.folder)


def test_results_from_workers_equal_those_of_this_host(on_two, played):
    images = played.images(good="pass", bad="fail", dead="die", late="lost 1", fine="pass")
    (played.folder / "t.yaml").write_text(TEMPLATE)
    done = played.run(
        *images, "-t", "t.yaml", "--on", on_two.address, "--json", "v.json", "--junit", "j.xml"
    )
    assert done.returncode == 4, done
    verdicts = played.verdicts()
    assert [*verdicts] == images
    outcomes = [each["outcome"] for each in verdicts.values()]
    assert outcomes == ["passed", "failed", "machine lost", "passed", "passed"]
    assert verdicts["late.raw"]["reasons"] == [
        "a first try lost its machine: the machine went away"
    ]
    assert verdicts["dead.raw"]["reasons"][-1].startswith("the process of the case was ended by")
    assert "late.raw: the machine was lost, which says nothing about the image" in done.stdout
    for each in verdicts.values():
        folder = Path(each["artifacts"])
        assert folder.parent == played.folder / "artifacts"
        assert json.loads((folder / "verdict.json").read_text()) == each
        assert each["facts"]["worker"].startswith("tcp://127.0.0.1:")
        assert each["image"].startswith(str(played.folder))
        assert each["template"] == "t.yaml"
    assert (Path(verdicts["good.raw"]["artifacts"]) / "report.html").exists()
    assert (Path(verdicts["good.raw"]["artifacts"]) / "template.yaml").read_text() == TEMPLATE
    assert (Path(verdicts["late.raw"]["artifacts"]) / "first-try").is_dir()
    suites = ET.parse(played.folder / "j.xml").getroot().findall("testsuite")
    assert [each.get("name") for each in suites] == [f"hotplate {image}" for image in images]
    lines = done.stdout.splitlines()
    assert lines[0] == f'5 cases on the workers of "{on_two.address}"'
    assert any(re.fullmatch(r"good\.raw: PASSED \(\d+ s\)", line) for line in lines)
    assert any(re.fullmatch(r"good\.raw: runs on tcp://127\.0\.0\.1:\d+", line) for line in lines)
    assert lines[-1].startswith("3 of 5 images passed; ")
    assert "is not encrypted, and whoever reaches the scheduler or a worker runs" in done.stderr
    # Images are in the workers' caches, and the cases' files there are gone.
    assert [*played.folder.glob("cache-*/images/*/good.raw")]
    assert not [*played.folder.glob("local-*/**/hotplate-*")]


def test_image_is_sent_in_pieces_and_resumed(on_two, played):
    (name,) = played.images(large="pass " + "x" * 9_000_000)
    image = image_set.of_file(played.folder / name, allow_backing=False)
    for worker, there in (("one", "pass " + "x" * 5_000_000), ("two", "damaged")):
        part = played.folder / f"cache-{worker}" / "images" / f"{image.key}.part"
        part.mkdir(parents=True)
        (part / name).write_text(there)
    templates = [f"t{number}.yaml" for number in range(6)]
    for each in templates:
        (played.folder / each).write_text(TEMPLATE)
    words = [word for each in templates for word in ("-t", each)]
    done = played.run(name, *words, "--on", on_two.address)
    assert done.returncode == 0, done
    kept = [*played.folder.glob(f"cache-*/images/{image.key}/{name}")]
    assert kept
    assert {each.read_bytes() for each in kept} == {(played.folder / name).read_bytes()}


def test_signal_leaves_no_case_on_any_worker(on_two, played):
    images = played.images(one="wait", two="wait", three="wait", four="wait", five="wait")
    process = played.start(*images, "--on", on_two.address, "--json", "v.json")

    wait_until(lambda: len(on_two.tried()) == 4)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=played_cases.SECONDS)
    assert process.returncode == 130, (out, err)
    assert not any(map(runs, on_two.tried()))
    outcomes = {each["outcome"] for each in played.verdicts().values()}
    assert outcomes == {"interrupted"}
    assert len(played.verdicts()) == 5
    assert out.splitlines()[-1].startswith("0 of 5 images passed; ")


def test_killed_client_leaves_no_case_on_any_worker(on_two, played):
    process = played.start(*played.images(one="wait", two="wait"), "--on", on_two.address)
    wait_until(lambda: len(on_two.tried()) == 2)
    process.kill()
    process.communicate(timeout=played_cases.SECONDS)
    wait_until(lambda: not any(map(runs, on_two.tried())))
    # And the workers accept the next command.
    again = played.run(*played.images(good="pass"), "--on", on_two.address)
    assert again.returncode == 0, again


def test_fail_fast_starts_no_case_after_a_failure(on_two, played):
    images = played.images(first="fail", second="pass", third="pass")
    done = played.run(*images, "--on", on_two.address, "-j", "1", "--fail-fast", "--json", "v.json")
    assert done.returncode == 1
    assert [*played.verdicts()] == images[:1]
    assert "not begun: second.raw, third.raw" in done.stdout
    assert played.tries("second") == []


def test_case_that_no_worker_can_run_is_reported_at_once(on_two, played):
    done = played.run(
        *played.images(one="pass"), "--on", on_two.address, "--accelerator", "kvm", "-q"
    )
    assert done.returncode == 3, done
    assert "can run this case: none of the 2 workers has KVM" in done.stdout


def test_missing_scheduler_error_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setenv("DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT", "2s")
    played = Played(tmp_path)
    done = played.run(*played.images(one="pass"), "--on", "tcp://127.0.0.1:9")
    assert done.returncode == 3
    assert 'no Dask scheduler answers at "tcp://127.0.0.1:9"' in done.stderr


def test_interactive_options_are_refused(tmp_path):
    (tmp_path / "one.raw").write_text("")
    done = hotplate("test", tmp_path / "one.raw", "--on", "tcp://127.0.0.1:9", "--keep")
    assert done.returncode == 2
    assert "leave guests up on this host, not on workers" in done.stderr
