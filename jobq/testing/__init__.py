"""Conformance suite, virtual clock, fault injection, emulators; imported at run time by `jobq emulator` alone."""
