"""One task's processes: environment, output, usage."""
