"""Pickles that Dask may load, and those that it may not."""

from __future__ import annotations

import os
import pickle

import pytest
from distributed import client
from distributed.core import clean_exception, error_message
from distributed.protocol import deserialize, serialize
from distributed.protocol import pickle as dask_pickle
from distributed.scheduler import KilledWorker

from hotplate.cases.cluster import plain

PLAIN = [None, True, 1, 2.5, "text", b"bytes", bytearray(b"x"), (1, "two"), [3], {"a": 4}, bytes]


class Trap:
    def __init__(self, reduced):
        self.reduced = reduced

    def __reduce__(self):
        return self.reduced


@pytest.mark.parametrize("value", PLAIN, ids=str)
def test_plain_data_is_loaded(value):
    assert plain.loads(dask_pickle.dumps(value)) == value


@pytest.mark.parametrize(
    "reduced",
    [
        (os.system, ("true",)),
        (eval, ("1",)),
        (getattr, ("a", "upper")),
        (__import__, ("os",)),
        (object, ()),
        (ValueError, ("x",)),
        (str.format, ("{}", 1)),
    ],
    ids=lambda reduced: reduced[0].__name__,
)
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_other_pickles_are_refused(reduced, protocol):
    data = pickle.dumps(Trap(reduced), protocol)
    with pytest.raises(plain.Refused, match="came from the cluster"):
        plain.loads(data)
    with plain.only_plain_data():
        for loads in (dask_pickle.loads, client.loads, client.pickle.loads):
            with pytest.raises(plain.Refused):
                loads(data)


def test_bytes_are_readable_meanwhile_and_all_data_afterwards():
    with plain.only_plain_data():
        assert deserialize(*serialize(b"a piece")) == b"a piece"
    assert deserialize(*serialize(ValueError("x"))).args == ("x",)


def test_exception_is_named_but_not_created():
    """Dask puts the bytes into an Exception of its own when it cannot load them."""
    sent = error_message(ValueError("no such thing"))
    with plain.only_plain_data():
        _, error, trace = clean_exception(sent["exception"].data, sent["traceback"].data)
    assert (type(error), trace) == (Exception, None)
    assert plain.exception_in(error.args[0]) == "ValueError: no such thing"
    assert plain.exception_in(pickle.dumps(KilledWorker("key", None, 3))) == "KilledWorker: key"


def test_data_without_a_pickle_has_no_exception():
    assert plain.exception_in(b"\xff\xff") == ""
