"""A deterministic simulation: the real worker on virtual time, over a network and a broker that fail; one seed, one run.

`python -m jobq.testing.simulation --help` runs seeds. A third party's backend is simulated by `run`, with a function
that makes it on a given clock; every request of it must be done within one instant of that clock.
"""
