"""QEMU and nothing else: accelerator, wiring, console, QMP, snapshots.

Knows no Heat.  The parts that other rooms use are :class:`~hotplate.machine.qemu.QemuMachine`,
:class:`~hotplate.machine.config.MachineConfig`, :func:`~hotplate.machine.wiring.choose` and
:func:`~hotplate.machine.accelerator.choose`.
"""
