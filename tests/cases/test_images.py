"""Images by URL in commands: fetched here, or left to the workers."""

from __future__ import annotations

import hashlib
import json
import os

from played_cases import Played
from played_cluster import cluster

from hotplate import cli
from hotplate.cases.images import NamedFiles
from hotplate.interrupts import Interrupts

TEMPLATE = "heat_template_version: 2018-08-31\nresources: {}\n"


def url_of(played: Played, name: str) -> str:
    return f"file://{played.folder}/{name}"


def test_url_is_fetched_into_the_cache(tmp_path):
    played = Played(tmp_path)
    (name,) = played.images(web="pass")
    url = url_of(played, name)
    (tmp_path / "matrix.yaml").write_text(f"images: [{url}]\n")
    (tmp_path / "t.yaml").write_text(TEMPLATE)
    for _ in range(2):
        done = played.run("-f", "matrix.yaml", "-t", "t.yaml", "--json", "v.json")
        assert done.returncode == 0, done
    (kept,) = (tmp_path / "cache" / "images").glob("*/web.raw")
    assert kept.read_text() == "pass"
    # Other content is another image, even without a hash.
    (tmp_path / name).write_text("fail")
    os.utime(tmp_path / name, (1, 1))
    assert played.run("-f", "matrix.yaml", "-t", "t.yaml").returncode == 1


def test_digest_of_a_url_is_checked(tmp_path):
    played = Played(tmp_path)
    (name,) = played.images(web="pass")
    (tmp_path / "t.yaml").write_text(TEMPLATE)
    good = hashlib.sha256(b"pass").hexdigest()
    url = url_of(played, name)
    assert played.run(f"{url}#sha256={good}", "-t", "t.yaml").returncode == 0
    wrong = played.run(f"{url}#sha256={'0' * 64}", "-t", "t.yaml")
    assert wrong.returncode == 3
    assert "is not what was asked for" in wrong.stderr


def test_url_error_has_its_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "matrix.yaml").write_text("images:\n- https://example.org/\n")
    assert cli.main(["test", "-f", "matrix.yaml"]) == 2
    assert 'line 2 of "matrix.yaml": "https://example.org/" names no image' in (
        capsys.readouterr().err
    )


def test_workers_fetch_urls_themselves(tmp_path):
    played = Played(tmp_path)
    (name,) = played.images(web="pass")
    (tmp_path / "t.yaml").write_text(TEMPLATE)
    url = url_of(played, name)
    with NamedFiles(tmp_path / "cache", Interrupts(), remote=True) as images:
        assert images.files([url])[0].name == name
    with cluster(tmp_path) as on:
        on.start_worker("only")
        done = played.run(url, "-t", "t.yaml", "--on", on.address, "--json", "v.json")
        assert done.returncode == 0, done
        verdict = json.loads((tmp_path / "v.json").read_text())
        assert verdict["image"] == url
        assert [*tmp_path.glob("cache-only/images/*/web.raw")]
        # Its groups are not known here.
        refused = played.run(url, "--on", on.address)
        assert refused.returncode == 2
        assert "is fetched by the workers, so its groups are not known here" in refused.stderr
