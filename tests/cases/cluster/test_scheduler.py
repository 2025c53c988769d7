"""Addresses of schedulers, and warnings about connections."""

from __future__ import annotations

import importlib.util
import warnings

import dask.config
import pytest
from distributed.versions import VersionMismatchWarning

from hotplate.cases.cluster import scheduler
from hotplate.errors import UsageError


@pytest.mark.parametrize("scheme", ["tcp", "tls"])
def test_address_is_kept_as_dask_prints_it(scheme):
    assert scheduler.address_of(f"{scheme}://host:8786") == f"{scheme}://host:8786"


def test_dask_scheme_follows_the_configuration():
    assert scheduler.address_of("dask://host:8786") == "tcp://host:8786"
    with dask.config.set({"distributed.comm.tls.client.cert": "cert.pem"}):
        assert scheduler.address_of("dask://host:8786/") == "tls://host:8786"


@pytest.mark.parametrize("text", ["host:8786", "http://host:80", "tcp://host", "tcp://host:99999"])
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
