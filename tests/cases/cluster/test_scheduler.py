"""Addresses of schedulers, warnings about connections, and connections with TLS."""

from __future__ import annotations

import importlib.util
import subprocess
import warnings
from pathlib import Path

import pytest
import yaml
from distributed.versions import VersionMismatchWarning
from played_cases import Played
from played_cluster import cluster

from hotplate.cases.cluster import scheduler
from hotplate.errors import UsageError


@pytest.mark.parametrize("scheme", ["tcp", "tls"])
def test_address_is_kept_as_dask_prints_it(scheme):
    assert scheduler.address_of(f"{scheme}://host:8786") == f"{scheme}://host:8786"


@pytest.mark.parametrize("text", ["host:8786", "dask://host:80", "tcp://host", "tcp://host:99999"])
def test_malformed_address_is_refused(text):
    with pytest.raises(UsageError, match="is no address of a Dask scheduler"):
        scheduler.address_of(text)


def test_missing_extra_is_reported(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(UsageError) as caught:
        scheduler.address_of("tcp://host:8786")
    assert caught.value.message == 'the package "distributed" (Dask) is not installed'
    assert caught.value.hint == "pip install 'hotplate[dask]'"


def test_only_unencrypted_connection_is_warned_of():
    assert "is not encrypted" in scheduler.warning("tcp://host:8786")
    assert scheduler.warning("tls://host:8786") == ""


def test_version_mismatch_of_other_packages_is_no_warning():
    """Dask's client compares its versions of numpy and others with those in the cluster."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        scheduler.hush()
        warnings.warn(VersionMismatchWarning("numpy"), stacklevel=1)
    assert seen == []


# -- TLS -------------------------------------------------------------------------------------------


def configured(folder: Path) -> Path:
    """Write a certificate, and a configuration that makes all use it."""
    cert, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-nodes", "-days", "2"),
            *("-pkeyopt", "ec_paramgen_curve:prime256v1"),
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
        with monkeypatch.context() as impatient:
            impatient.setenv("DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT", "3s")
            plain = played.run(*images, "--on", on.address.replace("tls", "tcp"))
        assert plain.returncode == 3
        assert "no Dask scheduler answers" in plain.stderr
        monkeypatch.setenv("DASK_CONFIG", str(config))
        done = played.run(*images, "--on", on.address)
        assert done.returncode == 0, done
        assert f'on the workers of "{on.address}"' in done.stdout
        assert "not encrypted" not in done.stderr
