"""hotplate.verdict.unit_names: what systemd's console cuts is told whole."""

from __future__ import annotations

import pytest

from hotplate.verdict.unit_names import COMMON, names_in, whole


@pytest.mark.parametrize(
    ("shown", "name"),
    [
        # systemd 252 and 257 on a serial console, which is 80 columns wide.
        ("cloud-config.serv\u2026tings specified in cloud-config.", "cloud-config.service"),
        (
            "systemd-networkd-wait-onl\u2026ait for Network to be Configured.",
            "systemd-networkd-wait-online.service",
        ),
        (
            "systemd-networkd-wait-onl...ice - Wait for Network",
            "systemd-networkd-wait-online.service",
        ),
        ("chrony.service - chrony, an NTP client/server.", "chrony.service"),
        ("cloud-init-networ\u2026ork Stage)", "cloud-init-network.service"),
    ],
)
def test_cut_name_is_told_whole(shown, name):
    assert whole(shown, COMMON) == name


@pytest.mark.parametrize("shown", ["cloud-in\u2026work", "site-se\u2026up the site.", "\u2026 x"])
def test_name_that_several_or_none_fit_is_told_as_it_is_shown(shown):
    assert whole(shown, COMMON) == shown


def test_names_are_found_whole_only():
    line = (
        "systemd[1]: a-b@1.service: Failed; see x.y, /etc/c.service.d, and cloud-config.serv\u2026t"
    )
    assert names_in(line) == ["a-b@1.service"]
    assert names_in(r"dev-disk-by\x2duuid-7c40.device - QEMU") == [
        r"dev-disk-by\x2duuid-7c40.device"
    ]
