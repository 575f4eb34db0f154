"""The HTTP lease and task service (architecture 9); needs the extra `server`."""
