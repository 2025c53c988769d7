"""What a run showed: stages, evidence, diagnosis, and the reports made of them.

This room reads the event log and nothing else; it knows neither QEMU nor Heat.
"""
