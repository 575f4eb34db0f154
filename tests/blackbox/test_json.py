"""The keys of what the commands print with `--json`: `keys.json` names those that stay. More may come."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.blackbox.support import Bench

pytestmark = pytest.mark.check

KEYS: dict[str, list[str]] = json.loads(Path(__file__).with_name("keys.json").read_text())


def test_each_look_has_its_keys(bench: Bench) -> None:
    bench.jobq(
        "q", "push", "--batch", "b", "--grid", "a=1,2", "--num-retries", "0", "-c", "echo $PARAM_a; test $PARAM_a = 1"
    )
    bench.jobq("q", "worker")
    bench.jobq("q", "push", "--id", "runs", "-c", "echo began >> began; until test -e go; do sleep 0.05; done")
    bench.jobq("q", "push", "--id", "waits", "-c", "true")
    bench.jobq("q", "lease", "run", "n", "--", "true")
    worker = bench.start("q", "worker", "--visibility-timeout", "4s")
    bench.has("began")
    looks = {look: bench.objects(*look.split()) for look in KEYS}
    (bench.work / "go").touch()
    bench.ends(worker, 0)
    for look, keys in KEYS.items():
        assert looks[look], look
        assert set(keys) <= found(looks[look][0]), look


def found(value: dict[str, Any], below: str = "") -> set[str]:
    """Return the keys, with those of objects within as `outer.inner`."""
    names = set()
    for key, inner in value.items():
        names.add(f"{below}{key}")
        for each in inner[:1] if isinstance(inner, list) else [inner]:
            names |= found(each, f"{below}{key}.") if isinstance(each, dict) else set()
    return names
