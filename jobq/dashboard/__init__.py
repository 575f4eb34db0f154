"""The dashboard: pages about the queues of a place, for people (docs/dashboard.md). Needs the extra `ui`."""
