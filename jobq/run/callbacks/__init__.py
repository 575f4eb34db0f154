"""Callbacks of the library: what they are given, and who runs them."""
