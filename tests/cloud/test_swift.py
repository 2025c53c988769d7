"""Swift, asked by unmodified clients: swiftclient, the SDK and the ``openstack`` command.

The values are those of Swift 2.34: ``swift/obj/server.py``, ``swift/proxy/controllers`` and
``swift/common/middleware``.
"""

from __future__ import annotations

import os
import subprocess
import time
import uuid
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import requests
import test_clients
from swiftclient import client as swift_client
from swiftclient import utils as swift_utils


@pytest.fixture(scope="module")
def store(connection: Any) -> Any:
    """Return the SDK's object store service."""
    return connection.object_store


@pytest.fixture
def box(swift: swift_client.Connection) -> Iterator[str]:
    """Create an empty container, and delete its objects after the test."""
    name = f"box-{uuid.uuid4().hex[:8]}"
    swift.put_container(name)
    yield name
    for each in swift.get_container(name, full_listing=True)[1]:
        swift.delete_object(name, each["name"])
    swift.delete_container(name)


def ask(cloud: Any, method: str, path: str, **fields: Any) -> requests.Response:
    path = f"/v1/AUTH_{cloud.credentials.project_id}{path}"
    return test_clients.ask(cloud, "swift", method, path, **fields)


def status_of(error: pytest.ExceptionInfo[swift_client.ClientException]) -> int:
    return int(error.value.http_status)


# -- accounts and containers --------------------


def test_capabilities_name_what_is_there(cloud: Any, swift: swift_client.Connection) -> None:
    """As tempest's and swiftclient's first request; ``expose_info`` of Swift."""
    url = f"{cloud.endpoints['swift']}/info"
    found = requests.get(url, timeout=120).json()
    assert swift.get_capabilities() == found
    assert found["swift"]["max_object_name_length"] == 1024
    assert found["swift"]["max_file_size"] == 16 << 20
    assert "sha512" in found["tempurl"]["allowed_digests"]
    assert "slo" not in found


def test_answers_have_headers_of_swift(cloud: Any, box: str) -> None:
    """As tempest.api.object_storage asserts, with its CustomMatchers for each kind of answer."""
    ask(cloud, "PUT", f"/{box}/o", data=b"123", headers={"X-Object-Meta-Empty": ""})
    account, container = ask(cloud, "HEAD", "").headers, ask(cloud, "HEAD", f"/{box}").headers
    for usage in ("Container-Count", "Object-Count", "Bytes-Used"):
        shown = account[f"X-Account-Storage-Policy-Policy-0-{usage}"]
        assert int(shown) == int(account[f"X-Account-{usage}"]) > 0
    assert container["X-Storage-Policy"] == "Policy-0"
    posted = ask(cloud, "POST", f"/{box}", headers={"X-Container-Meta-A": "b"})
    assert (posted.status_code, posted.headers["Content-Type"]) == (204, "text/html; charset=UTF-8")
    conflict = ask(cloud, "DELETE", f"/{box}")
    assert (conflict.status_code, "There was a conflict" in conflict.text) == (409, True)
    copied = ask(cloud, "PUT", f"/{box}/p", headers={"X-Copy-From": f"/{box}/o"}).headers
    assert (copied["X-Copied-From"], copied["X-Object-Meta-Empty"]) == (f"{box}/o", "")
    # Metadata of an object may be empty, and is copied so.
    assert ask(cloud, "HEAD", f"/{box}/p").headers["X-Object-Meta-Empty"] == ""
    healthy = requests.get(f"{cloud.endpoints['swift']}/healthcheck", timeout=120)
    assert (healthy.status_code, healthy.text) == (200, "OK")


def test_answers_have_transaction_ids_and_timestamps(cloud: Any, box: str) -> None:
    ask(cloud, "PUT", f"/{box}/o", data=b"1")
    for method, path in (("GET", ""), ("HEAD", f"/{box}"), ("GET", f"/{box}/o")):
        headers = ask(cloud, method, path).headers
        assert headers["X-Trans-Id"].startswith("tx")
        assert headers["X-Openstack-Request-Id"] == headers["X-Trans-Id"]
        assert abs(float(headers["X-Timestamp"]) - time.time()) < 3600
    assert ask(cloud, "GET", f"/{box}/none").headers["X-Trans-Id"]


def test_sdk_lists_containers_and_objects(store: Any, box: str) -> None:
    """The SDK sends ``Accept`` instead of ``format=json``."""
    store.upload_object(box, "o", data="four")
    (mine,) = [each for each in store.containers() if each.name == box]
    assert (mine.count, mine.bytes) == (1, 4)
    assert [each.name for each in store.objects(box)] == ["o"]


@pytest.mark.parametrize(
    ("headers", "query", "kind"),
    [
        ({}, "", "text/plain"),
        ({"Accept": "application/json"}, "", "application/json"),
        ({"Accept": "text/plain;q=0.5, application/json"}, "", "application/json"),
        ({"Accept": "text/plain"}, "?format=json", "application/json"),
        ({"Accept": "application/json"}, "?format=plain", "text/plain"),
        ({}, "?format=xml", ""),
        ({"Accept": "application/xml"}, "", ""),
    ],
)
def test_listings_have_the_requested_type(
    cloud: Any, box: str, headers: dict[str, str], query: str, kind: str
) -> None:
    ask(cloud, "PUT", f"/{box}/o", data=b"1")
    for path in ("", f"/{box}"):
        answer = ask(cloud, "GET", path + query, headers=headers)
        if not kind:
            assert answer.status_code == 406
            continue
        assert answer.headers["Content-Type"] == f"{kind}; charset=utf-8"
        assert answer.json() if "json" in kind else answer.text.endswith("\n")


def test_empty_listing_is_204_as_text_and_200_as_json(cloud: Any, box: str) -> None:
    assert ask(cloud, "GET", f"/{box}").status_code == 204
    answer = ask(cloud, "GET", f"/{box}?format=json")
    assert (answer.status_code, answer.json()) == (200, [])


def test_container_is_deleted_when_it_is_empty(cloud: Any) -> None:
    assert ask(cloud, "PUT", "/doomed").status_code == 201
    ask(cloud, "PUT", "/doomed/o", data=b"1")
    methods = (("DELETE", "", 409), ("DELETE", "/o", 204), ("DELETE", "", 204), ("HEAD", "", 404))
    for method, path, status in methods:
        assert ask(cloud, method, f"/doomed{path}").status_code == status


def test_listings_are_paged_and_filtered(
    cloud: Any, swift: swift_client.Connection, box: str
) -> None:
    for name in ("a", "b/1", "b/2", "c"):
        swift.put_object(box, name, b"")

    def names(**query: Any) -> list[str]:
        path = f"/{box}?" + "&".join(f"{name}={value}" for name, value in query.items())
        return ask(cloud, "GET", path).text.split()

    assert names(limit=2) == ["a", "b/1"]
    assert names(marker="b/1") == ["b/2", "c"]
    assert names(end_marker="b/2") == ["a", "b/1"]
    assert names(reverse="true", marker="c") == ["b/2", "b/1", "a"]
    assert names(delimiter="/") == ["a", "b/", "c"]
    assert names(prefix="b/", delimiter="/") == ["b/1", "b/2"]
    assert ask(cloud, "GET", f"/{box}?limit=10001").status_code == 412
    whole = swift.get_container(box, full_listing=True, limit=1)[1]
    assert [each["name"] for each in whole] == ["a", "b/1", "b/2", "c"]


def test_metadata_of_containers_and_accounts_is_removed(
    swift: swift_client.Connection, openstack: Any, box: str
) -> None:
    swift.post_container(box, {"X-Container-Meta-A": "1", "X-Container-Meta-B": "2"})
    assert swift.head_container(box)["x-container-meta-b"] == "2"
    openstack("container", "unset", "--property", "a", box)
    swift.post_container(box, {"X-Container-Meta-B": ""})
    assert not [each for each in swift.head_container(box) if "-meta-" in each]
    swift.post_account({"X-Account-Meta-C": "3"})
    assert swift.head_account()["x-account-meta-c"] == "3"
    swift.post_account({"X-Remove-Account-Meta-C": "x"})
    assert "x-account-meta-c" not in swift.head_account()


def test_public_container_is_read_without_a_token(cloud: Any, box: str) -> None:
    ask(cloud, "PUT", f"/{box}/o", data=b"for all")
    url = f"{cloud.endpoints['swift']}/v1/AUTH_{cloud.credentials.project_id}/{box}"
    assert requests.get(f"{url}/o", timeout=120).status_code == 401
    ask(cloud, "POST", f"/{box}", headers={"X-Container-Read": ".r:*"})
    assert requests.get(f"{url}/o", timeout=120).content == b"for all"
    assert requests.get(url, timeout=120).status_code == 401
    assert requests.put(f"{url}/o", timeout=120).status_code == 401
    ask(cloud, "POST", f"/{box}", headers={"X-Remove-Container-Read": "x"})
    assert requests.get(f"{url}/o", timeout=120).status_code == 401


def test_container_quota_is_enforced(swift: swift_client.Connection, box: str) -> None:
    swift.post_container(box, {"X-Container-Meta-Quota-Bytes": "4"})
    swift.put_object(box, "o", b"1234")
    with pytest.raises(swift_client.ClientException) as refused:
        swift.put_object(box, "more", b"5")
    assert status_of(refused) == 413


@pytest.mark.parametrize(
    ("method", "path", "headers"),
    [
        ("PUT", "/{box}", {"X-Storage-Policy": "gold"}),
        ("POST", "/{box}", {"X-Container-Write": "other:*"}),
        ("POST", "/{box}", {"X-Container-Read": "other:*"}),
        ("POST", "/{box}", {"X-Versions-Enabled": "true"}),
        ("PUT", "/{box}/o", {"X-Symlink-Target": "a/b"}),
        ("PUT", "/{box}/o", {"X-Delete-After": "soon"}),
        ("PUT", "/{box}/o", {"X-Delete-At": "1"}),
        ("PUT", "/{box}/o", {"X-Object-Manifest": "nowhere"}),
        ("PUT", "/{box}/o?multipart-manifest=put", {}),
        ("POST", "?bulk-delete", {}),
        ("PUT", "/{box}?extract-archive=tar", {}),
    ],
)
def test_headers_without_effect_are_refused(
    cloud: Any, swift: swift_client.Connection, box: str, method: str, path: str, headers: Any
) -> None:
    answer = ask(cloud, method, path.format(box=box), headers=headers)
    assert answer.status_code == 400
    assert len(answer.text) > 10
    assert swift.get_container(box)[1] == []


# -- objects --------------------


@pytest.mark.parametrize(
    ("asked", "status", "body"),
    [
        ("bytes=0-3", 206, b"0123"),
        ("bytes=4-", 206, b"456789"),
        ("bytes=-3", 206, b"789"),
        ("bytes=8-99", 206, b"89"),
        ("bytes=10-", 416, None),
        ("bytes=3-1", 200, b"0123456789"),
        ("lines=1-2", 200, b"0123456789"),
        ("bytes=0-0,2-2", 200, b"0123456789"),
    ],
)
def test_range_of_an_object_is_read(
    cloud: Any, box: str, asked: str, status: int, body: bytes | None
) -> None:
    ask(cloud, "PUT", f"/{box}/o", data=b"0123456789")
    answer = ask(cloud, "GET", f"/{box}/o", headers={"Range": asked})
    assert answer.status_code == status
    if body is None:
        assert answer.headers["Content-Range"] == "bytes */10"
        return
    assert answer.content == body
    assert answer.headers["Content-Length"] == str(len(body))
    if status == 206:
        start = b"0123456789".index(body)
        assert answer.headers["Content-Range"] == f"bytes {start}-{start + len(body) - 1}/10"


def test_object_metadata_is_stored_and_replaced(
    swift: swift_client.Connection, store: Any, box: str
) -> None:
    given = {"X-Object-Meta-Color": "blue", "Content-Encoding": "gzip", "Cache-Control": "no-store"}
    swift.put_object(box, "o", b"1", content_type="text/x", headers=given)
    shown = swift.head_object(box, "o")
    assert {name.lower(): shown[name.lower()] for name in given} == {
        name.lower(): value for name, value in given.items()
    }
    # A POST replaces all of it, except the type.
    swift.post_object(box, "o", {"X-Object-Meta-Size": "small"})
    shown = swift.head_object(box, "o")
    assert (shown["x-object-meta-size"], shown["content-type"]) == ("small", "text/x")
    assert not shown.keys() & {"x-object-meta-color", "content-encoding", "cache-control"}
    store.set_object_metadata("o", box, shape="round")
    assert store.get_object_metadata("o", box).metadata["shape"] == "round"
    with pytest.raises(swift_client.ClientException) as missing:
        swift.post_object(box, "none", {})
    assert status_of(missing) == 404


def test_type_of_an_object_follows_from_its_name(cloud: Any, box: str) -> None:
    detect = {"Content-Type": "text/plain", "X-Detect-Content-Type": "true"}
    for name, headers, kind in (
        ("a/index.html", {}, "text/html"),
        ("index.html", {"Content-Type": "text/plain"}, "text/plain"),
        ("b.json", detect, "application/json"),
        ("c", {}, "application/octet-stream"),
        ("c.unknown", detect, "application/octet-stream"),
    ):
        ask(cloud, "PUT", f"/{box}/{name}", data=b"1", headers=headers)
        assert ask(cloud, "HEAD", f"/{box}/{name}").headers["Content-Type"] == kind


def test_expired_object_is_gone(
    cloud: Any, swift: swift_client.Connection, box: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    swift.put_object(box, "o", b"1", headers={"X-Delete-After": "60"})
    at = int(swift.head_object(box, "o")["x-delete-at"])
    assert abs(at - time.time() - 60) < 60
    later = SimpleNamespace(time=lambda: time.time() + 120)
    monkeypatch.setattr("hotplate.cloud.swift_objects.time", later)
    assert ask(cloud, "GET", f"/{box}?format=json").json() == []
    assert ask(cloud, "GET", f"/{box}/o").status_code == 404


def test_manifest_is_read_as_its_segments(swift: swift_client.Connection, box: str) -> None:
    """``swift upload -S`` makes a dynamic large object."""
    for number, data in enumerate((b"one ", b"two ", b"three")):
        swift.put_object(box, f"big/{number}", data)
    manifest = f"{box}/big/"
    swift.put_object(box, "big", b"", headers={"X-Object-Manifest": manifest})
    headers, body = swift.get_object(box, "big")
    assert body == b"one two three"
    assert (headers["content-length"], headers["x-object-manifest"]) == ("13", manifest)
    assert headers["etag"].startswith('"')
    assert swift.head_object(box, "big")["content-length"] == "13"
    assert swift.get_object(box, "big", headers={"Range": "bytes=4-6"})[1] == b"two"
    assert swift.get_object(box, "big", query_string="multipart-manifest=get")[1] == b""


def test_swift_command_uploads_in_segments(
    cloud: Any, swift: swift_client.Connection, box: str, tmp_path: Path
) -> None:
    (tmp_path / "big").write_bytes(bytes(range(100)))
    owner = cloud.credentials
    environ = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "OS_AUTH_URL": cloud.endpoints["keystone"] + "/v3",
        "OS_USERNAME": owner.username,
        "OS_PASSWORD": owner.password,
        "OS_PROJECT_ID": owner.project_id,
        "OS_USER_DOMAIN_ID": owner.domain,
        "OS_IDENTITY_API_VERSION": "3",
    }

    for words in (
        ("upload", "-S", "30", box, "big"),
        ("copy", "-d", f"/{box}/other", box, "big"),
        ("download", box, "other", "-o", "copy"),
        ("delete", f"{box}_segments"),
    ):
        subprocess.run(["swift", *words], env=environ, cwd=tmp_path, check=True, timeout=120)
    assert (tmp_path / "copy").read_bytes() == bytes(range(100))
    assert [each["name"] for each in swift.get_container(box)[1]] == ["big", "other"]


def test_objects_are_copied(swift: swift_client.Connection, box: str) -> None:
    given = {"X-Object-Meta-Color": "blue"}
    swift.put_object(box, "from é", b"text", content_type="text/x", headers=given)
    swift.copy_object(box, "from é", f"/{box}/to é", {"X-Object-Meta-Size": "small"})
    headers, body = swift.get_object(box, "to é")
    assert (body, headers["content-type"]) == (b"text", "text/x")
    assert (headers["x-object-meta-color"], headers["x-object-meta-size"]) == ("blue", "small")
    swift.put_object(box, "again", b"", headers={"X-Copy-From": f"{box}/from%20%C3%A9"})
    assert swift.get_object(box, "again")[1] == b"text"
    for source, status in (("nothing", 412), (f"{box}/none", 404)):
        with pytest.raises(swift_client.ClientException) as refused:
            swift.put_object(box, "no", b"", headers={"X-Copy-From": source})
        assert status_of(refused) == status


def test_conditions_are_answered_with_304_412_or_422(
    cloud: Any, swift: swift_client.Connection, box: str
) -> None:
    etag = swift.put_object(box, "o", b"1")
    last = swift.head_object(box, "o")["last-modified"]

    def status(method: str = "GET", **headers: str) -> int:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return ask(cloud, method, f"/{box}/o", headers=named).status_code

    assert status(If_None_Match=etag) == 304
    assert status(If_None_Match="another") == 200
    assert status(If_Match="another") == 412
    assert status(If_Match=f'"{etag}"') == 200
    assert status(If_Modified_Since=last) == 304
    assert status(If_Unmodified_Since="Thu, 01 Jan 1970 00:00:01 GMT") == 412
    assert status("PUT", If_None_Match="*") == 412
    assert status("PUT", ETag="0" * 32) == 422


# -- TempURLs --------------------


def signed(
    swift: swift_client.Connection,
    cloud: Any,
    path: str,
    method: str,
    level: str = "account",
    *,
    prefix: bool = False,
) -> str:
    key, header = uuid.uuid4().hex, f"X-{level}-Meta-Temp-URL-Key-2"
    if level == "account":
        swift.post_account({header: key})
    else:
        swift.post_container(path.split("/")[1], {header: key})
    whole = f"/v1/AUTH_{cloud.credentials.project_id}{path}"
    made = swift_utils.generate_temp_url(whole, 600, key, method, prefix=prefix, digest="sha256")
    return f"{cloud.endpoints['swift']}{made}"


@pytest.mark.parametrize("level", ["account", "container"])
def test_temp_url_is_signed_by_each_key(
    cloud: Any, swift: swift_client.Connection, box: str, level: str
) -> None:
    private = {"X-Object-Meta-Secret": "1", "X-Object-Meta-Public-Color": "blue"}
    swift.put_object(box, "a b", b"0123", headers=private)
    url = signed(swift, cloud, f"/{box}/a b", "GET", level)
    answer = requests.get(url, timeout=120, headers={"Range": "bytes=1-2"})
    assert (answer.status_code, answer.content) == (206, b"12")
    assert answer.headers["Content-Disposition"] == (
        "attachment; filename=\"a b\"; filename*=UTF-8''a%20b"
    )
    assert datetime.strptime(answer.headers["Expires"], "%a, %d %b %Y %H:%M:%S GMT")
    assert answer.headers["X-Object-Meta-Public-Color"] == "blue"
    assert "X-Object-Meta-Secret" not in answer.headers
    assert requests.get(url + "&inline", timeout=120).headers["Content-Disposition"] == "inline"


def test_temp_url_of_a_prefix_reaches_its_objects_only(
    cloud: Any, swift: swift_client.Connection, box: str
) -> None:
    """As tempest's ObjectTempUrlTest.test_get_object_using_temp_url_with_prefix."""
    for name in ("public/a", "private/a"):
        swift.put_object(box, name, name.encode())
    url = signed(swift, cloud, f"/{box}/public", "GET", prefix=True)
    assert requests.get(url.replace("/public?", "/public/a?"), timeout=120).text == "public/a"
    assert requests.get(url.replace("/public?", "/private/a?"), timeout=120).status_code == 401


@pytest.mark.parametrize("header", ["X-Object-Manifest", "X-Copy-From"])
def test_temp_url_leads_to_no_other_object(
    cloud: Any, swift: swift_client.Connection, box: str, header: str
) -> None:
    swift.put_object(box, "secret", b"1")
    url = signed(swift, cloud, f"/{box}/mine", "PUT")
    answer = requests.put(url, timeout=120, headers={header: f"{box}/secret"})
    assert answer.status_code == 400
    assert "not allowed in this tempurl" in answer.text
