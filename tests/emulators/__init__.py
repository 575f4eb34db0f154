"""Services of others, emulated for tests."""
