"""Reads a worker's pages, and waits for what they are to show."""

import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable

from prometheus_client.parser import text_string_to_metric_families

DEADLINE_SECONDS = 30.0
Figures = dict[tuple[str, frozenset[tuple[str, str]]], float]


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def read(port: int, path: str = "/metrics") -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
        return str(answer.read().decode())


def figures(text: str) -> Figures:
    """Return each sample by its name and labels, as prometheus-client's own parser reads them."""
    families = list(text_string_to_metric_families(text))
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


def value(found: Figures, name: str, **labels: str) -> float | None:
    """Return the sample of this name that has these labels among its own."""
    wanted = frozenset(labels.items())
    return next((number for (found_name, have), number in found.items() if found_name == name and wanted <= have), None)


def until(port: int, worker: subprocess.Popen[bytes], shown: Callable[[Figures], bool]) -> Figures:
    """Scrape until the figures show something; the worker must live meanwhile."""
    end = time.monotonic() + DEADLINE_SECONDS
    while time.monotonic() < end:
        assert worker.poll() is None, worker.communicate()
        try:
            found = figures(read(port))
        except urllib.error.URLError:
            found = {}
        if found and shown(found):
            return found
        time.sleep(0.05)
    raise AssertionError(f"never shown; last: {found}")
