"""A cluster in which every connection needs a certificate, by Dask's configuration."""

from __future__ import annotations

import subprocess
from pathlib import Path

import yaml
from played_cases import Played
from played_cluster import cluster


def configured(folder: Path) -> Path:
    """Write a certificate, and a configuration that makes all use it."""
    cert, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-subj", "/CN=hotplate tests", "-keyout", key, "-out", cert),
        ],
        check=True,
        capture_output=True,
    )
    each = {"cert": str(cert), "key": str(key)}
    tls = {"ca-file": str(cert), "scheduler": each, "worker": each, "client": each}
    comm = {"require-encryption": True, "tls": tls}
    config = folder / "dask.yaml"
    config.write_text(yaml.safe_dump({"distributed": {"comm": comm}}))
    return config


def test_cases_run_over_tls_alone(tmp_path, monkeypatch):
    config = configured(tmp_path)
    played = Played(tmp_path)
    images = played.images(good="pass")
    with cluster(tmp_path, tls=config) as on:
        on.start_worker("only")
        assert "not encrypted" not in (tmp_path / "only.log").read_text()
        plain = played.run(*images, "--on", on.address.replace("tls", "tcp"))
        assert plain.returncode == 3
        assert "no Dask scheduler answers" in plain.stderr
        monkeypatch.setenv("DASK_CONFIG", str(config))
        done = played.run(*images, "--on", on.address.replace("tls", "dask"))
        assert done.returncode == 0, done
        assert f'on the workers of "{on.address}"' in done.stdout
        assert "not encrypted" not in done.stderr
