"""The effect of settings on a testbed, without a cloud; no machine is booted."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import MagicMock

import pytest
import tiny_disk

from hotplate.events.log import EventLog
from hotplate.image.inspect import Image
from hotplate.settings import AcceleratorChoice, Settings, WiringChoice
from hotplate.testbed import testbed as module
from hotplate.testbed.testbed import Testbed

pytestmark = pytest.mark.tool("qemu-system-x86_64")


@pytest.mark.parametrize(
    ("wiring", "networked"), [(WiringChoice.AUTO, True), (WiringChoice.GUESTFWD, False)]
)
def test_servers_have_networks_unless_a_wiring_is_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wiring: WiringChoice, networked: bool
) -> None:
    monkeypatch.setattr(module, "Cloud", MagicMock())
    settings = Settings(accelerator=AcceleratorChoice.TCG, cache=tmp_path, wiring=wiring)
    image = Image.open(tiny_disk.make(tmp_path / "tiny.raw"))
    with Testbed(image, settings=settings, directory=tmp_path, events=EventLog()) as testbed:
        assert testbed.compute.networked is networked
