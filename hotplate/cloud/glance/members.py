"""Members of images: the projects with which the owner of an image shares it.

The cloud's users have one project, which owns all images: nobody accepts one.
The rules and messages are those of Glance's ``api/v2/image_members.py``.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from hotplate.cloud.database.store import Store
from hotplate.cloud.http.rest import HttpError, now

#: An image or a member in the form of Glance's JSON.
Values: TypeAlias = dict[str, Any]

#: Glance: ``[DEFAULT] image_member_quota``.
MAX_MEMBERS = 128
MAX_TEXT = 255

MEMBER: Values = {
    "name": "member",
    "properties": {
        "member_id": {"type": "string"},
        "image_id": {"type": "string"},
        "status": {"type": "string", "enum": ["pending", "accepted", "rejected"]},
        "created_at": {"type": "string"},
        "updated_at": {"type": "string"},
        "schema": {"readOnly": True, "type": "string"},
    },
}
MEMBERS: Values = {
    "name": "members",
    "properties": {
        "members": {"type": "array", "items": MEMBER},
        "schema": {"type": "string"},
    },
    "links": [{"rel": "describedby", "href": "{schema}"}],
}


class Members:
    """The members of all images."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def all(self, image: Values) -> list[Values]:
        """Return the members of an image, oldest first.

        :raises HttpError: 403 for an image that is not shared.
        """
        if image["visibility"] != "shared":
            raise HttpError(403, "Only shared images have members.")
        return [_shown(row) for row in self._store.find("hotplate_image_member", image=image["id"])]

    def get(self, image: Values, project: str) -> Values:
        """Return one member.

        :raises HttpError: 404, when the image is not shared with that project.
        """
        for each in self.all(image):
            if each["member_id"] == project:
                return each
        raise HttpError(404, f"{project} not found in the member list of the image {image['id']}.")

    def add(self, image: Values, project: object) -> Values:
        """Share an image with a project, which has to accept it.

        :raises HttpError: 400 for a bad id, 403 for an image that is not shared, 409 for a member,
            413 for too many.
        """
        if not isinstance(project, str) or not 0 < len(project) <= MAX_TEXT:
            raise HttpError(400, 'Expected a member in the form: {"member": "image_id"}')
        members = self.all(image)
        if any(each["member_id"] == project for each in members):
            raise HttpError(409, f"Member {project} is duplicated for image {image['id']}")
        if len(members) >= MAX_MEMBERS:
            raise HttpError(
                413,
                f"Image member limit exceeded for image {image['id']}: Attempted: "
                f"{len(members) + 1}, Maximum: {MAX_MEMBERS}:",
            )
        self._store.insert("hotplate_image_member", image["id"], project, now())
        return self.get(image, project)

    def remove(self, image: Values, project: str) -> None:
        """Take a project from the members of an image.

        :raises HttpError: 404, when it is not one of them.
        """
        self.get(image, project)
        self._store.delete("hotplate_image_member", image=image["id"], project=project)


def _shown(row: Any) -> Values:
    return {
        "member_id": row["project"],
        "image_id": row["image"],
        "status": "pending",
        "created_at": row["created"],
        "updated_at": row["created"],
        "schema": "/v2/schemas/member",
    }
