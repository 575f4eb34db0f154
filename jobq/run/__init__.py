"""What runs: processes, output, the supervisor and the worker."""
