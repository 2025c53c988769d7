"""hotplate.verdict.facts: names that systemd's console cuts are restored."""

from __future__ import annotations

import pytest

from hotplate.verdict.facts import COMMON, names_in, whole


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
def test_cut_name_is_restored(shown, name):
    assert whole(shown, COMMON) == name


@pytest.mark.parametrize("shown", ["cloud-in\u2026work", "site-se\u2026up the site.", "\u2026 x"])
def test_name_without_single_match_is_returned_as_shown(shown):
    assert whole(shown, COMMON) == shown


def test_only_full_names_are_returned():
    line = (
        "systemd[1]: a-b@1.service: Failed; see x.y, /etc/c.service.d, and cloud-config.serv\u2026t"
    )
    assert names_in(line) == ["a-b@1.service"]
    assert names_in(r"dev-disk-by\x2duuid-7c40.device - QEMU") == [
        r"dev-disk-by\x2duuid-7c40.device"
    ]
