"""The files of a configuration drive, for the data sources that read one."""

from __future__ import annotations

import json
from collections.abc import Mapping

from hotplate.cloud.nova.compute import ServerSpec


def nocloud(spec: ServerSpec, tree: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return a NoCloud drive's content, made of a config drive's tree (cloud-init: NoCloud)."""
    vendor = json.loads(tree.get("openstack/latest/vendor_data.json", b"{}"))
    return {
        "meta-data": json.dumps({"instance-id": spec.id, "local-hostname": spec.name}).encode(),
        "user-data": spec.user_data,
        "vendor-data": str(vendor.get("cloud-init", "")).encode(),
    }
