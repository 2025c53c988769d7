"""The images, and the files with their data."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

from oslo_utils import uuidutils

from hotplate.cloud.database.store import Store
from hotplate.cloud.glance.members import Members, Values
from hotplate.cloud.http import limits
from hotplate.cloud.http.rest import HttpError, now

#: Maximum number of images.
MAX_IMAGES = 500
CHUNK = 1 << 20
#: Alias of a session's first image in hotplate's own templates.
UNDER_TEST = "the image under test"


@dataclass(frozen=True)
class SessionImage:
    """An image of the host that is used in a session.

    :param name: its name in templates and for clients.
    :param path: the file.
    :param disk_format: ``qcow2`` or ``raw``.
    :param virtual_size: size in bytes of the disk that a guest sees.
    """

    name: str
    path: Path
    disk_format: str
    virtual_size: int = 0

    @property
    def id(self) -> str:
        """The id of the image, the same in every session."""
        return image_id(self.name)


def image_id(name: str) -> str:
    """Return the id of an image of the host, or of another cloud, by its name."""
    return str(uuid.uuid5(uuid.NAMESPACE_DNS, f"{name}.image.hotplate"))


def no_such_image(name: str, images: Iterable[SessionImage]) -> str:
    """Return the message for a request for an image that no server can boot.

    >>> no_such_image("db", [SessionImage("web", Path("web.raw"), "raw")])
    'there is no image "db" to boot; there are "web"'
    """
    names = ", ".join(f'"{each.name}"' for each in images)
    return f'there is no image "{name}" to boot; there are {names}'


class Images:
    """The images of one cloud.

    :param directory: folder for uploaded data; created when it is needed.
    :param session: the initial images, which cannot be changed or removed.
    :param owner: the project that owns them.
    :param by_name: servers boot the session's image that they name, and other names are refused;
        otherwise every name is accepted.
    :param upload_refusal: as :attr:`~hotplate.cloud.options.CloudOptions.upload_refusal`.
    :param used: returns the ids of the images of all servers.
    """

    def __init__(
        self,
        store: Store,
        directory: Path,
        *,
        session: Iterable[SessionImage],
        owner: str,
        by_name: bool = False,
        upload_refusal: Callable[[str], str] = lambda _: "",
        used: Callable[[], Collection[str]] = frozenset,
    ) -> None:
        self._by_name = by_name
        self._upload_refusal = upload_refusal
        self._used = used
        self._store = store
        self.transaction = store.transaction
        self.members = Members(store)
        self._directory = directory
        self._session = {image.id: image for image in session}
        self._shown = {image.id: _of_session(image, owner) for image in self._session.values()}
        self._forget_lost()

    # -- look-ups --------------------

    def all(self) -> list[Values]:
        """Return all images: those of the session first, then the newest first."""
        rows = self._store.rows("SELECT body FROM hotplate_image ORDER BY number DESC")
        made = [json.loads(row["body"]) for row in rows]
        return [*self._shown.values(), *made]

    def get(self, image_id: str) -> Values:
        """Return the image with that id.

        :raises HttpError: 404, when there is none.
        """
        if image_id in self._shown:
            return self._shown[image_id]
        image = self._stored(image_id)
        if image is None:
            raise HttpError(404, f"No image found with ID {image_id}")
        return image

    def _stored(self, image_id: str) -> Values | None:
        row = self._store.first("hotplate_image", id=image_id)
        return json.loads(row["body"]) if row else None

    def uploaded(self, image_id: str) -> tuple[str, Path] | None:
        """Return the name and the file of an uploaded image; None for every other reference."""
        image = self._stored(image_id)
        if image is None or image["status"] != "active":
            return None
        return str(image["name"] or image_id), self._file(image_id)

    def path(self, image: Values) -> Path | None:
        """Return the file with an image's data; None when it has no data."""
        if image["id"] in self._session:
            return self._session[image["id"]].path
        return None if image["status"] == "queued" else self._file(image["id"])

    def refusal(self, reference: str) -> str:
        """Return the reason why no server can boot an image, as a sentence; "" when one can.

        :param reference: a name or an id.
        """
        if (uploaded := self._stored(reference)) is not None:
            # Nova's own words (ImageNotActive).
            inactive = f"Image {reference} is not active."
            return self._upload_refusal(reference) if uploaded["status"] == "active" else inactive
        session = self._session.values()
        good = {"", UNDER_TEST, *self._session, *(each.name for each in session)}
        if not self._by_name or reference in good:
            return ""
        return no_such_image(reference, session)

    def id_of(self, reference: str) -> str:
        """Return the id of the image that a server with this reference boots; "" for none.

        :param reference: a name or an id; an unknown name stands for the image under test.
        """
        if not reference or uuidutils.is_uuid_like(reference):
            return reference
        known = {each.name: each.id for each in self._session.values()}
        return known.get(reference) or next(iter(self._session), image_id(reference))

    # -- changes --------------------

    def create(self, values: Values, owner: str) -> Values:
        """Create an image without data.

        :raises HttpError: 409 for an id in use, 413 when there are too many images.
        """
        image = {**_new(owner), **values}
        taken = {each["id"] for each in self.all()}
        if image["id"] in taken:
            raise HttpError(409, f"Image ID {image['id']} already exists!")
        if len(taken) >= MAX_IMAGES:
            raise HttpError(413, f"The limit of {MAX_IMAGES} images has been exceeded.")
        self._store.insert("hotplate_image", None, image["id"], json.dumps(image))
        return image

    def change(self, image: Values, changes: Values, *, drop: Iterable[str] = ()) -> Values:
        """Change an image, and remove its properties ``drop``; return the new image.

        :raises HttpError: 403 for an image of the session.
        """
        self._check_own(image)
        changed = {**image, **changes, "updated_at": now()}
        for name in drop:
            changed.pop(name, None)
        self._store.write(
            "UPDATE hotplate_image SET body = ? WHERE id = ?", json.dumps(changed), image["id"]
        )
        return changed

    def set_active(self, image: Values, *, active: bool) -> None:
        """Let others have an image's data, or no longer: neither users nor new servers.

        :raises HttpError: 403 for an image without data.
        """
        if image["status"] == "queued":
            verb = "reactivate" if active else "deactivate"
            raise HttpError(403, f"Not allowed to {verb} image in status 'queued'")
        self.change(image, {"status": "active" if active else "deactivated"})

    def delete(self, image: Values) -> None:
        """Remove an image with its data.

        :raises HttpError: 403 for a protected image, 409 for one that a server was booted from.
        """
        if image["protected"]:
            raise HttpError(403, f"Image {image['id']} is protected and cannot be deleted.")
        if image["id"] in self._used():
            # The server's disk is an overlay of the file.
            raise HttpError(
                409, f"Image {image['id']} could not be deleted because it is in use by a server."
            )
        self._store.delete("hotplate_image", id=image["id"])
        self._store.delete("hotplate_image_member", image=image["id"])
        self._file(image["id"]).unlink(missing_ok=True)

    def upload(self, image: Values, data: BinaryIO) -> Values:
        """Store an image's data, once.

        :raises HttpError: 409 when the image has data, 400 when it has no formats, 413 when the
            storage limit would be exceeded.
        """
        self._check_own(image)
        if image["status"] != "queued":
            raise HttpError(409, f"Image status transition from {image['status']} to saving is "
                             "not allowed")  # fmt: skip
        if not image["disk_format"] or not image["container_format"]:
            raise HttpError(
                400, "Properties disk_format, container_format must be set prior to saving data."
            )
        self._directory.mkdir(mode=0o700, exist_ok=True)
        # A name of its own: two requests may upload the same image at the same time.
        part = self._directory / f"{image['id']}.{uuid.uuid4().hex}.part"
        try:
            size, checksum, digest = self._copy(data, part)
            with self.transaction():
                # Other requests may have changed the image meanwhile.
                image = self.get(image["id"])
                if image["status"] != "queued":
                    raise HttpError(409, f"Image {image['id']} has data already")
                part.rename(self._file(image["id"]))
                return self.change(
                    image,
                    {
                        "status": "active",
                        "size": size,
                        "virtual_size": _virtual_size(self._file(image["id"]), image, size),
                        "checksum": checksum,
                        "os_hash_algo": "sha512",
                        "os_hash_value": digest,
                    },
                )
        finally:
            # After the rename there is no such file.
            part.unlink(missing_ok=True)

    def _copy(self, data: BinaryIO, part: Path) -> tuple[int, str, str]:
        left = limits.IMAGES_STORED - sum(each.stat().st_size for each in self._directory.iterdir())
        size = 0
        checksum, digest = hashlib.md5(usedforsecurity=False), hashlib.sha512()
        with part.open("xb") as file:
            while chunk := data.read(CHUNK):
                size += len(chunk)
                if size > left:
                    raise HttpError(
                        413,
                        f"The images would take more than {limits.IMAGES_STORED} bytes together.",
                    )
                checksum.update(chunk)
                digest.update(chunk)
                file.write(chunk)
        return size, checksum.hexdigest(), digest.hexdigest()

    def _check_own(self, image: Values) -> None:
        if image["id"] in self._session:
            raise HttpError(403, f"Image {image['id']} is the session's and cannot be changed.")

    def _file(self, image_id: str) -> Path:
        return self._directory / image_id

    def _forget_lost(self) -> None:
        """Reset images whose files are missing, because a database is copied without them."""
        for image in self.all():
            if image["id"] in self._session or image["status"] == "queued":
                continue
            if not self._file(image["id"]).is_file():
                none = {"size": None, "checksum": None, "os_hash_value": None}
                self.change(image, {"status": "queued", **none})


def _of_session(image: SessionImage, owner: str) -> Values:
    stat = image.path.stat()
    at = datetime.fromtimestamp(stat.st_mtime, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        **_new(owner),
        "id": image.id,
        "name": image.name,
        "status": "active",
        "visibility": "public",
        "protected": True,
        "disk_format": image.disk_format,
        "container_format": "bare",
        "size": stat.st_size,
        "virtual_size": image.virtual_size or None,
        "created_at": at,
        "updated_at": at,
    }


def _new(owner: str) -> Values:
    created = now()
    return {
        "id": str(uuid.uuid4()),
        "name": None,
        "status": "queued",
        "visibility": "shared",
        "protected": False,
        "os_hidden": False,
        "owner": owner,
        "disk_format": None,
        "container_format": None,
        "min_disk": 0,
        "min_ram": 0,
        "size": None,
        "virtual_size": None,
        "checksum": None,
        "os_hash_algo": None,
        "os_hash_value": None,
        "tags": [],
        "created_at": created,
        "updated_at": created,
    }


def _virtual_size(file: Path, image: Values, size: int) -> int | None:
    """Return the size of an uploaded disk as a guest sees it, None for an unknown format."""
    if image["disk_format"] == "raw":
        return size
    with file.open("rb") as data:
        head = data.read(32)
    # docs/interop/qcow2.txt of QEMU: the magic, and the size at byte 24.
    if image["disk_format"] == "qcow2" and len(head) == 32 and head.startswith(b"QFI\xfb"):
        return int.from_bytes(head[24:], "big")
    return None
