"""Zaqar's limits and the words in which it refuses more.

The numbers are the defaults of ``zaqar/conf/transport.py``, the words those of
``zaqar/transport/validation.py``, ``zaqar/transport/wsgi/utils.py``,
``zaqar/common/transport/wsgi/helpers.py`` (Zaqar 23.0.1) and of Falcon, in which it is written.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from keystoneauth1.adapter import Adapter
from test_clients import owner_session, raw_zaqar
from websockets.sync.client import connect

API, BODY = "Invalid API request", "Invalid request body"
ONE = "/v2/queues/limited"
MESSAGES = f"{ONE}/messages"
#: Of a message.
TTL = "may not exceed 1209600 seconds, and must be at least 60 seconds long."


@pytest.fixture
def zaqar(cloud: Any) -> Iterator[Adapter]:
    client = raw_zaqar(cloud)
    yield client
    client.delete(ONE)


def error(answer: Any) -> tuple[int, str, str]:
    return answer.status_code, answer.json()["title"], answer.json()["description"]


def post(**message: Any) -> dict[str, Any]:
    return {"messages": [{"body": 1, **message}]}


@pytest.mark.parametrize(
    ("body", "title", "words"),
    [
        ({}, API, "No messages were found in the request body."),
        ([1], BODY, "Request body could not be parsed."),
        ({"messages": []}, API, "No messages to enqueu."),
        ({"messages": {}}, BODY, "Document type not supported."),
        ({"messages": [{"ttl": 60}]}, BODY, 'Missing "body" field.'),
        (post(ttl="60"), BODY, 'The value of the "ttl" field must be a int.'),
        (post(ttl=59), API, f"The TTL for a message {TTL}"),
        (post(ttl=1209601), API, f"The TTL for a message {TTL}"),
        (post(body="x" * 262144), API, "Message collection size is too large. Max size 262144"),
    ],
)
def test_bad_messages_are_refused_by_zaqars_words(
    zaqar: Adapter, body: Any, title: str, words: str
) -> None:
    assert error(zaqar.post(MESSAGES, json=body)) == (400, title, words)


def test_messages_at_the_limits_are_accepted(zaqar: Adapter) -> None:
    for ttl in (60, 1209600):
        assert zaqar.post(MESSAGES, json=post(ttl=ttl)).status_code == 201
    around = len(json.dumps(post(body="")))
    assert zaqar.post(MESSAGES, json=post(body="x" * (262144 - around))).status_code == 201
    ttls = [each["ttl"] for each in zaqar.get(MESSAGES).json()["messages"]]
    assert ttls == [60, 1209600, 3600]


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({"x": "y" * 65536}, "Queue metadata is too large. Max size: 65536"),
        ({"_default_message_ttl": "60"}, "_default_message_ttl must be integer."),
        ({"_default_message_ttl": ""}, "_default_message_ttl must be integer."),
        (
            {"_default_message_ttl": 59},
            "_default_message_ttl can not exceed 1209600 seconds, and must be at least 60 seconds "
            "long.",
        ),
        (
            {"_max_messages_post_size": 262145},
            "_max_messages_post_size can not exceed 262144,  and must be at least greater than 0.",
        ),
        ({"_dead_letter_queue_messages_ttl": 59}, f"The TTL for a message {TTL}"),
        (
            {"_default_message_delay": 901},
            "The TTL can not exceed 900 seconds, and must be at least 0 seconds long.",
        ),
        ({"_enable_encrypt_messages": 1}, "_enable_encrypt_messages must be boolean."),
        # hotplate's own: it does not delay messages.
        (
            {"_default_message_delay": 5},
            "Messages are not delayed here: _default_message_delay must be 0.",
        ),
    ],
)
def test_bad_metadata_is_refused_by_zaqars_words(zaqar: Adapter, metadata: Any, words: str) -> None:
    assert error(zaqar.put(ONE, json=metadata)) == (400, API, words)


def test_queue_shows_zaqars_defaults(zaqar: Adapter) -> None:
    """As ``_get_reserved_metadata`` of ``zaqar/transport/wsgi/v2_0/queues.py``."""
    zaqar.put(ONE, json={"mine": 1})
    assert zaqar.get(ONE).json() == {
        "mine": 1,
        "_max_messages_post_size": 262144,
        "_default_message_ttl": 3600,
        "_default_message_delay": 0,
        "_dead_letter_queue": None,
        "_dead_letter_queue_messages_ttl": None,
        "_max_claim_count": None,
        "_enable_encrypt_messages": False,
    }


PATCH = {"Content-Type": "application/openstack-messaging-v2.0-json-patch"}


def test_command_changes_the_metadata_of_a_queue(zaqar: Adapter, openstack: Any) -> None:
    zaqar.put(ONE, json={"old": 1, "_default_message_ttl": 60})
    metadata = {"mine": "x", "_default_message_ttl": 90}
    openstack("messaging", "queue", "set", "metadata", "limited", json.dumps(metadata))
    shown = zaqar.get(ONE).json()
    assert (shown["mine"], shown["_default_message_ttl"], "old" in shown) == ("x", 90, False)


@pytest.mark.parametrize(
    ("patch", "status", "words"),
    [
        ({"op": "move", "path": "/metadata/x"}, 400, "Invalid operation: `move`. It must be one"),
        ({"op": "remove", "path": "/metadata"}, 400, "Invalid JSON pointer for this resource"),
        ({"op": "add", "path": "/metadata/x"}, 400, 'Operation "add" requires a member named'),
        (
            {"op": "replace", "path": "/metadata/x", "value": 1},
            409,
            "Can't replace non-existent object x.",
        ),
        ({"op": "add", "path": "/metadata/_default_message_ttl", "value": 59}, 400, "can not exce"),
    ],
)
def test_bad_change_of_a_queue_is_refused(
    zaqar: Adapter, patch: Any, status: int, words: str
) -> None:
    zaqar.put(ONE)
    answer = error(zaqar.patch(ONE, json=[patch], headers=PATCH))
    assert answer[0] == status
    assert words in answer[2]
    assert zaqar.patch(ONE, json=[patch]).status_code == 415
    assert zaqar.patch("/v2/queues/nowhere", json=[patch], headers=PATCH).status_code == 404


def test_queue_limits_the_size_of_its_posts(zaqar: Adapter) -> None:
    zaqar.put(ONE, json={"_max_messages_post_size": 100})
    assert zaqar.post(MESSAGES, json=post(body="x" * 10)).status_code == 201
    assert error(zaqar.post(MESSAGES, json=post(body="x" * 100))) == (
        400,
        API,
        "Message collection size is too large. The max size for current queue is 100. It is "
        "calculated by max size = min(max_messages_post_size_config: 262144, "
        "max_messages_post_size_queue: 100).",
    )


@pytest.mark.parametrize(
    ("method", "path", "title", "words"),
    [
        ("GET", "/v2/queues?limit=21", API, "Limit must be at least 1 and no greater than 20."),
        ("GET", f"{MESSAGES}?limit=0", API,
         "Limit must be at least 1 and may not be greater than 20."),
        ("GET", f"{MESSAGES}?limit=21", API,
         "Limit must be at least 1 and may not be greater than 20."),
        ("GET", f"{MESSAGES}?ids={','.join('a' * 21)}", API,
         "Limit must be at least 1 and may not be greater than 20."),
        *(("GET", f"{MESSAGES}?limit={text}", "Invalid parameter",
           'The "limit" parameter is invalid. The value must be an integer.')
          for text in ("many", "\u00b2", "9" * 400)),
        ("DELETE", f"{MESSAGES}?pop=21", API,
         "Pop value must be at least 1 and may not be greater than 20."),
        ("DELETE", f"{MESSAGES}?ids={','.join('a' * 21)}", API,
         "ids parameter should have at least 1 and not greater than 20 values."),
        ("DELETE", f"{MESSAGES}?ids=a&pop=1", API,
         "pop and id params cannot be present together in the delete request."),
        ("DELETE", MESSAGES, API,
         'The request should have either "ids" or "pop" parameter in the request, to be able to '
         "delete."),
        ("DELETE", f"{MESSAGES}?pop=0", API,
         "Pop value must be at least 1 and may not be greater than 20."),
        ("PUT", f"/v2/queues/{'q' * 65}", "Invalid queue identification",
         "The format of the submitted queue name or project id is not valid."),
        ("POST", "/v2/queues/not%2Bone/messages", "Invalid queue identification",
         "The format of the submitted queue name or project id is not valid."),
    ],
)  # fmt: skip
def test_bad_requests_are_refused_by_zaqars_words(
    zaqar: Adapter, method: str, path: str, title: str, words: str
) -> None:
    assert error(zaqar.request(path, method)) == (400, title, words)


def test_queue_names_at_the_limit_are_accepted(zaqar: Adapter) -> None:
    for name in ("q" * 64, "a.b-c_D9"):
        assert zaqar.put(f"/v2/queues/{name}").status_code == 201
        assert zaqar.delete(f"/v2/queues/{name}").status_code == 204


def test_messages_that_are_not_there_are_not_found(zaqar: Adapter) -> None:
    status, title, words = error(zaqar.get(f"{MESSAGES}?ids=a,b"))
    assert (status, title) == (404, "Not found")
    assert words.startswith("No messages with IDs: ['a', 'b'] found in the queue limited for")


def test_client_id_is_needed(cloud: Any) -> None:
    """By ``client_id_uuid_safe = strict``; a signed request needs it too."""
    client = owner_session(cloud)
    url = cloud.endpoints["zaqar"] + ONE
    missing = client.get(url, raise_exc=False)
    assert error(missing) == (400, "Missing header value", 'The "Client-Id" header is required.')
    bad = client.get(url, headers={"Client-ID": "me"}, raise_exc=False)
    assert error(bad) == (400, "Wrong UUID value", "Malformed hexadecimal UUID.")


@pytest.mark.parametrize(
    ("action", "body", "words"),
    [
        ("queue_create", {"queue_name": "q" * 65},
         "Queue names may not be more than 64 characters long."),
        ("queue_create", {"queue_name": "a b"},
         "Queue names may only contain ASCII letters, digits, underscores, and dashes."),
        ("queue_create", {"queue_name": "q", "metadata": {"x": "y" * 65536}},
         "Queue metadata is too large. Max size: 65536"),
        ("subscription_create", {"queue_name": "a/b"},
         "Queue names may only contain ASCII letters, digits, underscores, and dashes."),
        ("message_post", {"queue_name": "q" * 250_000},
         "Queue names may not be more than 64 characters long."),
        ("message_post", {"queue_name": "q"}, "No messages were found in the request body."),
        ("message_post", {"queue_name": "q", **post(body="x" * 262144)},
         "Message collection size is too large. Max size 262144"),
        ("message_list", {"queue_name": "q", "limit": 21},
         "Limit must be at least 1 and may not be greater than 20."),
        ("message_delete_many", {"queue_name": "q", "pop": 21},
         "Pop value must be at least 1 and may not be greater than 20."),
    ],
)  # fmt: skip
def test_websocket_has_the_same_limits(cloud: Any, action: str, body: Any, words: str) -> None:
    """As ``zaqar/api/v2/endpoints.py``."""
    headers = {
        "X-Auth-Token": owner_session(cloud).get_token(),
        "Client-ID": str(uuid.uuid4()),
        "X-Project-ID": cloud.credentials.project_id,
    }
    with connect(cloud.endpoints["zaqar-websocket"]) as connection:
        for sent in ({"action": "authenticate"}, {"action": action, "body": body}):
            connection.send(json.dumps({**sent, "headers": headers}))
            answer = json.loads(connection.recv(timeout=120))
    assert (answer["headers"]["status"], answer["body"]["error"]) == (400, words)
