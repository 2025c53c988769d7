"""Plug-in for diskimage-builder's block devices: partitions as loop devices with an offset.

diskimage-builder's own ``partitioning`` asks ``kpartx`` for one device per partition, which needs
device-mapper in the kernel and, outside of containers, udev. A loop device with an offset and a
size limit has the same effect and needs neither. The partition table itself is written by the
inherited code, so the configuration (``label``, ``align``, ``partitions``) is that of
``partitioning``:

.. code-block:: yaml

    - local_loop:
        name: image0
    - offset_partitioning:
        base: image0
        label: mbr
        partitions:
          - name: root
            flags: [boot, primary]
            size: 100%

The interface is that of ``diskimage_builder.block_device.plugin``, as of version 3.43.
"""

from __future__ import annotations

import json
import logging
import re

from diskimage_builder.block_device.exception import BlockDeviceSetupException
from diskimage_builder.block_device.level0.localloop import loopdev_detach
from diskimage_builder.block_device.level1.partitioning import Partitioning
from diskimage_builder.block_device.utils import exec_sudo, remove_device

logger = logging.getLogger(__name__)


def partition_extents(table: str) -> dict[int, tuple[int, int]]:
    """Read the output of ``sfdisk --json``.

    :param table: the output; warnings before and after the JSON document are ignored.
    :return: partition number -> (offset, length), both in bytes.
    :raises BlockDeviceSetupException: when it holds no partition table.
    """
    start, end = table.find("{"), table.rfind("}")
    try:
        document = json.loads(table[start : end + 1])["partitiontable"]
        sector = int(document.get("sectorsize", 512))
        extents = {}
        for partition in document["partitions"]:
            number = re.search(r"(\d+)$", partition["node"])
            if number is None:
                raise ValueError(partition["node"])
            extents[int(number.group(1))] = (
                int(partition["start"]) * sector,
                int(partition["size"]) * sector,
            )
    except (KeyError, TypeError, ValueError) as error:
        raise BlockDeviceSetupException(f"sfdisk printed no partition table: {table!r}") from error
    return extents


def attach(image: str, offset: int, length: int, *, sector_size: int = 512) -> str:
    """Attach ``length`` bytes from ``offset`` of a file; returns the loop device's path."""
    command = ["losetup", "--show", "--find"]
    command += ["--offset", str(offset), "--sizelimit", str(length)]
    if sector_size != 512:
        command += ["--sector-size", str(sector_size)]
    return str(exec_sudo([*command, image])).strip().splitlines()[-1]


def release(device: str) -> None:
    """Unmount a loop device at all mount points, and detach it.

    Never raises: it runs after a failure, and the next device has to be released too.
    diskimage-builder's mount nodes register nothing to undo a mount.
    """
    for command in (["umount", "--all-targets", device], ["losetup", "--detach", device]):
        try:
            exec_sudo(command)
        except BlockDeviceSetupException as error:
            logger.info("[%s] failed while releasing [%s]: %s", " ".join(command), device, error)


class OffsetPartitioning(Partitioning):  # type: ignore[misc]
    """``partitioning`` of diskimage-builder, without ``kpartx`` and device-mapper."""

    def __init__(self, config: object, default_config: object, state: object) -> None:
        super().__init__(config, default_config, state)
        self.loops: list[str] = []

    def create(self) -> None:
        """Write the table and attach every partition; called once for each partition node."""
        self.number_of_partitions += 1
        if self.number_of_partitions > 1:
            return
        base = self.state["blockdev"][self.base]
        self.image_path = base["image"]
        # On a host that cannot resolve its own name, sudo writes a warning before each answer.
        base["device"] = base["device"].strip().splitlines()[-1]
        self.device_path = base["device"]
        self.disk_size = self._size_of_block_dev(self.image_path)
        if self.label == "mbr":
            self._create_mbr()
        else:
            self._create_gpt()
        exec_sudo(["sync", self.image_path])
        for node in self.partitions:
            # The inherited code assumes that it has made device-mapper names.
            node.rollbacks = [entry for entry in node.rollbacks if entry[0] is not remove_device]

        extents = partition_extents(exec_sudo(["sfdisk", "--json", self.device_path]))
        sector_size = int(exec_sudo(["blockdev", "--getss", self.device_path]).split()[-1])
        for node in self.partitions:
            # "/dev/mapper/loop0p1": the number is the partition's in the inherited code.
            promised = self.state["blockdev"][node.get_name()]["device"]
            number = int(promised.rpartition("p")[2])
            offset, length = extents[number]
            device = attach(self.image_path, offset, length, sector_size=sector_size)
            node.add_rollback(release, device)
            self.loops.append(device)
            self.state["blockdev"][node.get_name()] = {"device": device}
            logger.info(
                "Partition [%s] is [%s], offset [%d] length [%d]",
                node.get_name(),
                device,
                offset,
                length,
            )

    def umount(self) -> None:
        """Detach the partitions; called once for each, and works when the last is unmounted."""
        self.number_of_partitions -= 1
        if self.number_of_partitions == 0:
            for device in reversed(self.loops):
                loopdev_detach(device)
