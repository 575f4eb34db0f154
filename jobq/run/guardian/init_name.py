"""How the init of an attempt's PID namespace is known: all others in there are gone before it is."""


def init_name(guardian: int) -> str:
    """Return its name (prctl(2): 15 characters at most), which shares no word with the worker's, for `pkill`."""
    return f"init-of-{guardian}"
