"""A deterministic simulation: the real worker and guardian on virtual time, among faults; a seed, a run.

`python -m tests.simulation --help` runs seeds.
"""
