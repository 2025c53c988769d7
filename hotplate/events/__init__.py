"""What happens during a run: one stream of events, and what each of them means.

Everybody above may emit and read; this room knows neither QEMU nor Heat nor a verdict.
"""
