"""The properties of images, as JSON schemas from which clients build their models.

Source: Glance's image API v2, ``GET /v2/schemas/image`` and ``/v2/schemas/images``.
"""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING

from hotplate.cloud.glance.members import MEMBER, MEMBERS, Values
from hotplate.cloud.http.rest import HttpError

if TYPE_CHECKING:
    from jsonschema import Draft202012Validator

#: Glance: ``[DEFAULT] image_property_quota`` and ``image_tag_quota`` (``glance/common/config.py``).
MAX_PROPERTIES = 128
MAX_TAGS = 128
MAX_TEXT = 255
#: Bytes of a property's value: Glance's column is a ``TEXT`` of MySQL, and its schema has no limit.
MAX_VALUE = 65535
MAX_INT = 2**31 - 1

DISK_FORMATS = ("ami", "ari", "aki", "vhd", "vhdx", "vmdk", "raw", "qcow2", "vdi", "iso", "ploop")
CONTAINER_FORMATS = ("ami", "ari", "aki", "bare", "ovf", "ova", "docker", "compressed")
VISIBILITIES = ("community", "public", "private", "shared")
UUID = "^([0-9a-fA-F]){8}-([0-9a-fA-F]){4}-([0-9a-fA-F]){4}-([0-9a-fA-F]){4}-([0-9a-fA-F]){12}$"

_TEXT: Values = {"type": ["null", "string"], "maxLength": MAX_TEXT}
_SHOWN_TEXT: Values = {**_TEXT, "readOnly": True}
_NUMBER: Values = {"type": "integer"}
_SHOWN_NUMBER: Values = {"type": ["null", "integer"], "readOnly": True}

IMAGE_PROPERTIES: dict[str, Values] = {
    "id": {"type": "string", "pattern": UUID},
    "name": _TEXT,
    "status": {**_SHOWN_TEXT, "type": "string"},
    "visibility": {"type": "string", "enum": list(VISIBILITIES)},
    "protected": {"type": "boolean"},
    "os_hidden": {"type": "boolean"},
    "owner": _TEXT,
    "disk_format": {"type": ["null", "string"], "enum": [None, *DISK_FORMATS]},
    "container_format": {"type": ["null", "string"], "enum": [None, *CONTAINER_FORMATS]},
    "min_disk": _NUMBER,
    "min_ram": _NUMBER,
    "tags": {"type": "array", "items": {"type": "string", "maxLength": MAX_TEXT}},
    "size": _SHOWN_NUMBER,
    "virtual_size": _SHOWN_NUMBER,
    "checksum": _SHOWN_TEXT,
    "os_hash_algo": _SHOWN_TEXT,
    "os_hash_value": _SHOWN_TEXT,
    "created_at": _SHOWN_TEXT,
    "updated_at": _SHOWN_TEXT,
    "file": _SHOWN_TEXT,
    "self": _SHOWN_TEXT,
    "schema": _SHOWN_TEXT,
    "direct_url": _SHOWN_TEXT,
    "locations": {"type": "array", "items": {"type": "object"}},
    "stores": _SHOWN_TEXT,
}
READ_ONLY = frozenset(name for name, spec in IMAGE_PROPERTIES.items() if spec.get("readOnly"))
#: Names that nobody sets (``_reserved_properties`` of ``api/v2/images.py``).
_RESERVED = ("location", "deleted", "deleted_at")

IMAGE: Values = {
    "name": "image",
    "properties": IMAGE_PROPERTIES,
    "additionalProperties": {"type": "string"},
    "links": [
        {"rel": "self", "href": "{self}"},
        {"rel": "enclosure", "href": "{file}"},
        {"rel": "describedby", "href": "{schema}"},
    ],
}


IMAGES: Values = {
    "name": "images",
    "properties": {
        "images": {"type": "array", "items": IMAGE},
        "first": {"type": "string"},
        "next": {"type": "string"},
        "schema": {"type": "string"},
    },
    "links": [{"rel": "first", "href": "{first}"}, {"rel": "next", "href": "{next}"}],
}
SCHEMAS = {each["name"]: each for each in (IMAGE, IMAGES, MEMBER, MEMBERS)}


def check(values: Values) -> None:
    """Check the properties of an image in a request.

    The order and the words are those of Glance's ``api/v2/images.py``, ``domain`` and ``quota``.

    :raises HttpError: 403 for properties that only Glance sets, 400 for a bad value, 413 for too
        many properties or tags.
    """
    for name in values:
        if name in READ_ONLY:
            raise HttpError(403, f"Attribute '{name}' is read-only.")
    if (error := next(_validator().iter_errors(values), None)) is not None:
        where = "".join(f"[{json.dumps(part)}]" for part in error.path)
        raise HttpError(
            400, f"Provided object does not match schema 'image': {_short(error.message)} {where}"
        )
    own = [name for name in values if name not in IMAGE_PROPERTIES]
    for name in own:
        if len(name) > MAX_TEXT:
            raise HttpError(
                400, f"Custom property should not be greater than {MAX_TEXT} characters."
            )
        if name in _RESERVED or name.startswith("os_glance"):
            raise HttpError(403, f"Attribute '{name}' is reserved.")
        if not name or len(values[name].encode()) > MAX_VALUE:
            raise HttpError(400, f"A property has a name and at most {MAX_VALUE} bytes.")
    if "locations" in values:
        # Glance shows and accepts none by default (``[DEFAULT] show_multiple_locations``).
        raise HttpError(403, "Attribute 'locations' is reserved.")
    for name in ("min_disk", "min_ram"):
        if values.get(name, 0) < 0:
            raise HttpError(
                400,
                f"Invalid value '{values[name]}' for parameter '{name}': Cannot be a negative "
                "value",
            )
        if values.get(name, 0) > MAX_INT:
            raise HttpError(400, f"'{name}' value out of range, must not exceed {MAX_INT}.")
    _check_count("tags", len(values.get("tags", ())), MAX_TAGS)
    _check_count("properties", len(own), MAX_PROPERTIES)


def _check_count(things: str, count: int, most: int) -> None:
    if count > most:
        raise HttpError(
            413,
            f"The limit has been exceeded on the number of allowed image {things}. "
            f"Attempted: {count}, Maximum: {most}",
        )


@cache
def _validator() -> Draft202012Validator:
    # Imported here, as for Nova, to keep it out of the start of a cloud.
    from jsonschema import Draft202012Validator

    return Draft202012Validator({"type": "object", **IMAGE})


def _short(text: str) -> str:
    """Return a message with the middle of its quoted value cut out."""
    return text if len(text) <= 160 else f"{text[:80]} ... {text[-80:]}"
