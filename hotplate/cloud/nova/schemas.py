"""Schemas of request bodies (``nova/api/openstack/compute/schemas``)."""

from __future__ import annotations

from typing import Any

from hotplate.cloud.http.rest import HttpError, Request

#: Nova: ``MAX_TAG_COUNT`` (``nova/objects/instance.py``).
MAX_TAGS = 50

#: Maximum number of characters of a value that an error repeats.
MAX_SHOWN = 300

_NAME = {"type": "string", "minLength": 1, "maxLength": 255, "pattern": r"^\S(.*\S)?$"}
_TEXT = {"type": "string", "maxLength": 255}
#: ``fqdn`` of Nova's ``api/validation/parameter_types.py``: a name with its domain, since 2.94.
_HOST_NAME = {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[a-zA-Z0-9-._]*$"}
# Clients send numbers and booleans as text, too.
_REFERENCE = {"type": ["string", "integer"], "maxLength": 255}
_NUMBER = {"type": ["string", "integer"], "minimum": 1, "pattern": "^[0-9]{1,6}$"}
_BOOLEAN = {"type": ["string", "boolean"], "maxLength": 10}
_HINTS = {"type": "object", "maxProperties": 64}
_METADATA = {
    "type": "object",
    "propertyNames": {"pattern": r"^[a-zA-Z0-9_:. -]{1,255}$"},
    "additionalProperties": {"type": "string", "maxLength": 255},
}
_TAG = {"type": "string", "minLength": 1, "maxLength": 60, "pattern": "^[^,/]*$"}
_TAG_LIST = {"type": "array", "items": _TAG, "maxItems": MAX_TAGS}
_OBJECTS = {"type": "array", "items": {"type": "object"}, "maxItems": 64}
_NETWORKS = {"anyOf": [_OBJECTS, {"enum": ["auto", "none"]}]}
_TEXT_OR_NULL = {"type": ["string", "null"], "maxLength": 255}
_DISK_CONFIG = {"enum": ["AUTO", "MANUAL"]}


#: A JSON Schema.
Schema = dict[str, Any]


def _object(properties: dict[str, Any], required: tuple[str, ...] = ()) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


def _wrapped(name: str, inner: Schema, **beside: object) -> Schema:
    return _object({name: inner, **beside}, (name,))


def _body(name: str, properties: dict[str, Any], *required: str) -> Schema:
    """Return the schema of a body with one object of these properties."""
    return _wrapped(name, _object(properties, required))


#: The properties that a server is created with, and that can be changed.
_PROPERTIES = {
    "name": _NAME,
    "description": _TEXT_OR_NULL,
    "accessIPv4": _TEXT,
    "accessIPv6": _TEXT,
    "hostname": _HOST_NAME,
    "OS-DCF:diskConfig": _DISK_CONFIG,
}

_CREATE_FIELDS = {
    **_PROPERTIES,
    "imageRef": _TEXT,
    "flavorRef": {**_REFERENCE, "minLength": 1},
    "adminPass": _TEXT,
    "metadata": _METADATA,
    "networks": _NETWORKS,
    "personality": _OBJECTS,
    "availability_zone": _NAME,
    "block_device_mapping": _OBJECTS,
    "block_device_mapping_v2": _OBJECTS,
    "config_drive": _BOOLEAN,
    "key_name": _NAME,
    "min_count": _NUMBER,
    "max_count": _NUMBER,
    "return_reservation_id": _BOOLEAN,
    "security_groups": _OBJECTS,
    "user_data": {"type": "string"},
    "tags": _TAG_LIST,
    "trusted_image_certificates": {"type": ["array", "null"], "maxItems": 50},
    "host": _NAME,
    "hypervisor_hostname": _NAME,
}
_HINTED = {"os:scheduler_hints": _HINTS, "OS-SCH-HNT:scheduler_hints": _HINTS}

CREATE = _wrapped("server", _object(_CREATE_FIELDS, ("name", "flavorRef")), **_HINTED)
CREATE_SINCE_37 = _wrapped(
    "server", _object(_CREATE_FIELDS, ("name", "flavorRef", "networks")), **_HINTED
)
UPDATE = _body("server", _PROPERTIES)
METADATA = _wrapped("metadata", _METADATA)
METADATA_ITEM = _wrapped("meta", {**_METADATA, "minProperties": 1, "maxProperties": 1})
TAG_LIST = _wrapped("tags", _TAG_LIST)

REBUILD = _body(
    "rebuild",
    {
        **_PROPERTIES,
        "imageRef": _TEXT,
        "adminPass": _TEXT,
        "metadata": _METADATA,
        "preserve_ephemeral": _BOOLEAN,
        "personality": _OBJECTS,
        "key_name": _TEXT_OR_NULL,
        "user_data": {"type": ["string", "null"]},
        "trusted_image_certificates": {"type": ["array", "null"], "maxItems": 50},
    },
    "imageRef",
)
RESIZE = _body(
    "resize",
    {"flavorRef": {**_REFERENCE, "minLength": 1}, "OS-DCF:diskConfig": _DISK_CONFIG},
    "flavorRef",
)
REBOOT = _body("reboot", {"type": {"enum": ["SOFT", "HARD", "Soft", "Hard"]}}, "type")
CONSOLE = _wrapped(
    "os-getConsoleOutput",
    _object({"length": {"type": ["integer", "string", "null"], "pattern": "^-?[0-9]{1,9}$"}}),
)
PASSWORD = _wrapped("changePassword", _object({"adminPass": _TEXT}, ("adminPass",)))
ADD_GROUP, REMOVE_GROUP = (
    _body(action, {"name": {**_TEXT, "minLength": 1}}, "name")
    for action in ("addSecurityGroup", "removeSecurityGroup")
)
LOCK = _wrapped(
    "lock", {"anyOf": [{"type": "null"}, _object({"locked_reason": {**_TEXT, "minLength": 1}})]}
)

_KEY_PAIR_FIELDS = {
    "name": {**_NAME, "pattern": r"^[a-zA-Z0-9_@. -]+$"},
    "public_key": {"type": ["string", "null"], "maxLength": 16384},
    "type": {"enum": ["ssh", "x509"]},
    "user_id": _TEXT,
}
KEY_PAIR = _body("keypair", _KEY_PAIR_FIELDS, "name")
KEY_PAIR_SINCE_92 = _body("keypair", _KEY_PAIR_FIELDS, "name", "public_key")

_POLICY = {"enum": ["affinity", "anti-affinity", "soft-affinity", "soft-anti-affinity"]}
GROUP = _body(
    "server_group",
    {
        "name": _NAME,
        "policies": {"type": "array", "items": _POLICY, "minItems": 1, "maxItems": 1},
    },
    "name",
    "policies",
)
GROUP_SINCE_64 = _body(
    "server_group",
    {
        "name": _NAME,
        "policy": _POLICY,
        "rules": _object({"max_server_per_host": _NUMBER}),
    },
    "name",
    "policy",
)
_FIXED_IP = _object({"ip_address": _TEXT}, ("ip_address",))
INTERFACE = _body(
    "interfaceAttachment",
    {
        "net_id": _TEXT,
        "port_id": _TEXT,
        "fixed_ips": {"type": "array", "items": _FIXED_IP, "minItems": 1, "maxItems": 1},
        "tag": _TAG,
    },
)
VOLUME = _body(
    "volumeAttachment",
    {
        "volumeId": _TEXT,
        "device": _TEXT_OR_NULL,
        "tag": _TAG,
        "delete_on_termination": _BOOLEAN,
    },
    "volumeId",
)


def read(request: Request, schema: Schema) -> dict[str, Any]:
    """Return the body of a request after a check against ``schema``.

    :raises HttpError: as :func:`check`.
    """
    body = request.json()
    check(body, schema)
    return body


def check(body: dict[str, Any], schema: Schema) -> None:
    """Refuse a body that does not conform to ``schema``.

    :raises HttpError: 400, in Nova's words (``nova/api/validation/validators.py``).
    """
    # Imported here: it takes a seventh of a second, which would delay the start of a cloud.
    from jsonschema import Draft202012Validator

    errors = Draft202012Validator(schema).iter_errors(body)
    # The error that is nearest to the root of the body.
    error = min(errors, key=lambda error: len(error.path), default=None)
    if error is None:
        return
    reason = str(error.message)[:MAX_SHOWN]
    if error.path:
        value = str(error.instance)[:MAX_SHOWN]
        reason = f"Invalid input for field/attribute {error.path[-1]}. Value: {value}. {reason}"
    raise HttpError(400, reason)
