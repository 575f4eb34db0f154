"""A deterministic simulation: the real worker and guardian on virtual time, among faults; a seed, a run.

`python -m jobq.testing.simulation --help` runs seeds. A third party's backend is simulated by `campaign.run_many` with
a function that makes it on the clock that it is given; each of its requests must be done within one instant of that.
"""
