"""The image under test in a cloud: uploaded for one run, or an existing one."""

from __future__ import annotations

import shlex
from typing import Any

from hotplate.elsewhere.leftovers import Run
from hotplate.elsewhere.os_cloud import TOO_LARGE, OsCloud, one_line, status_of
from hotplate.elsewhere.refusals import refusal
from hotplate.errors import HostError, ImageError, UsageError
from hotplate.image.inspect import Image
from hotplate.image.plan import Layout
from hotplate.timing.deadline import Deadline, retry

#: Time limit of Glance for each part of an upload, and for its import.
UPLOAD_SECONDS = 600.0

#: The property of an uploaded image with its content's hash.
SHA256 = "hotplate_sha256"

BAD_REQUEST, CONFLICT, UNSUPPORTED = 400, 409, 415


def upload(cloud: OsCloud, image: Image, run: Run) -> str:
    """Upload an image for a run, wait until servers can boot it, and return its id.

    It is named and tagged after the run, so that it can be found whatever happens to this process.

    :raises UsageError: when the file alone is not the image.
    :raises ImageError: when Glance refuses it.
    :raises HostError: when the cloud has no room for it.
    """
    _check_is_one_file(image)
    with cloud.translated("a new image"):
        made = cloud.sdk.image.post(
            "/images",
            json={
                "name": run.name,
                "tags": run.tags,
                "visibility": "private",
                "container_format": "bare",
                "disk_format": image.format,
                SHA256: image.sha256(),
                "architecture": image.arch,
                "hw_firmware_type": "bios" if image.bios_bootable else "uefi",
            },
        )
        _check(cloud, image, made)
        identity = str(made.json()["id"])
        with image.path.open("rb") as data:
            answer = cloud.sdk.image.put(
                f"/images/{identity}/file",
                data=data,
                headers={"Content-Type": "application/octet-stream"},
                timeout=UPLOAD_SECONDS,
            )
        _check(cloud, image, answer)
    _wait_until_active(cloud, image, identity)
    return identity


def _check_is_one_file(image: Image) -> None:
    if image.layout is Layout.PARTITION:
        raise UsageError(
            f'the image "{image.path}" is a file system with its kernel beside it, and a cloud '
            "boots disks",
            hint="hotplate build --disk; or upload it yourself, and name it with --os-image",
        )
    if len(image.chain) > 1:
        raise UsageError(
            f'the image "{image.path}" needs the file "{image.chain[1].path}" behind it, and one '
            "file is uploaded",
            hint=f"qemu-img convert -O qcow2 {shlex.quote(str(image.path))} WHOLE.qcow2",
        )


def _check(cloud: OsCloud, image: Image, answer: Any) -> None:
    """Raise the error in Glance's answer to a part of an upload, if any."""
    from openstack import exceptions

    try:
        exceptions.raise_from_response(answer)
    except exceptions.HttpException as error:
        words, status = one_line(error), status_of(error)
        if refused := refusal(cloud.name, words):
            raise refused from error
        if status == TOO_LARGE:
            raise HostError(
                f'the cloud "{cloud.name}" has no room for the image "{image.path}": {words}',
                hint=f"openstack --os-cloud {cloud.name} image list; --os-image uses one of them",
            ) from error
        if status in (BAD_REQUEST, CONFLICT, UNSUPPORTED):
            raise _refused(cloud, image, words) from error
        raise cloud.error_of(error, "images") from error


def _refused(cloud: OsCloud, image: Image, words: str) -> ImageError:
    return ImageError(f'Glance of the cloud "{cloud.name}" refuses "{image.path}": {words}')


def _wait_until_active(cloud: OsCloud, image: Image, identity: str) -> None:
    def ready(_: bool) -> bool:
        with cloud.translated("its images"):
            shown = cloud.sdk.image.get_image(identity)
        if shown.status in ("killed", "deleted", "deactivated"):
            raise _refused(cloud, image, f"its status is {shown.status}")
        return bool(shown.status == "active")

    retry(ready, Deadline(UPLOAD_SECONDS, f'the image "{image.path}" to be active'), every=1.0)
