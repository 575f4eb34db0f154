"""Conformance suite, virtual clock and fault injection, for any backend; never imported at run time."""
