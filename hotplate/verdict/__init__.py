"""The results of a run: stages, evidence, diagnosis and the verdict.

Reads only events; knows neither QEMU nor Heat, and writes no report.
"""
