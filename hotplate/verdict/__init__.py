"""What a run showed: stages, evidence, diagnosis and the verdict.

Reads events and nothing else; knows neither QEMU nor Heat, and writes no report.
"""
