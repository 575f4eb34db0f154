"""What tests any backend: conformance suite, stateful model, clock, faults; at run time `jobq check` alone uses it."""
