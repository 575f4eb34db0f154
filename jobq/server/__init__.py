"""The HTTP lease and task service (DESIGN section 9); needs the extra `server`."""
