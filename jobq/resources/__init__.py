"""What tasks ask of a machine, what a worker offers of it, and who holds what (docs/resources.md)."""
