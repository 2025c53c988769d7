"""What executes the guest's instructions: KVM where it works, TCG otherwise."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Accelerator:
    """The chosen accelerator.

    :param name: ``kvm`` or ``tcg``.
    :param cpu: the CPU model that goes with it.
    :param options: QEMU's arguments.
    :param reason: why, as a sentence for people.
    """

    name: str
    cpu: str
    options: tuple[str, ...]
    reason: str


def emulation(reason: str) -> Accelerator:
    """Return TCG, QEMU's translator, which runs everywhere."""
    return Accelerator(
        name="tcg", cpu="qemu64", options=("-accel", "tcg,thread=multi"), reason=reason
    )
