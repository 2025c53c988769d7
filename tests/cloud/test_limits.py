"""Small rules of the cloud's parts, tested on a running one."""

from __future__ import annotations

import base64
import threading
from typing import Any

import pytest
from wire_guest import guest

from hotplate.cloud.keystone.identity import IdentityError
from hotplate.cloud.nova.compute import ServerSpec
from hotplate.cloud.nova.server_records import UserDataTooLargeError


@pytest.mark.parametrize(("size", "fits"), [(49149, True), (49150, False), (60000, False)])
def test_user_data_limit(cloud: Any, size: int, fits: bool) -> None:
    spec = ServerSpec(id="x", name="n", user_data=b"x" * size)
    if fits:
        cloud.servers.check_size(spec)
        return
    with pytest.raises(UserDataTooLargeError) as refused:
        cloud.servers.check_size(spec)
    assert refused.value.status == 400
    assert str(len(base64.b64encode(spec.user_data))) in str(refused.value)


def test_tampered_token_is_refused(cloud: Any) -> None:
    user = cloud.identity.user(cloud.credentials.user_id)
    token = cloud.identity.token(cloud.identity.grant(user))
    assert cloud.identity.read_token(token).user == user
    for wrong in ("", "x", token[:-1], token[:-4] + "AAAA", "gAAAAA"):
        with pytest.raises(IdentityError):
            cloud.identity.read_token(wrong)


def test_listeners_are_closed(cloud: Any) -> None:
    before = threading.active_count()
    for _ in range(3):
        with guest(cloud, "nobody") as vm:
            assert vm.get("/latest/user-data").status_code == 404
    assert threading.active_count() <= before + 1
