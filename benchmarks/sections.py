"""How all benchmarks run: modules compiled first, then section after section, with a warning where others are busy.

A section that fails is reported and stops no other; the exit code is 1 then.
"""

import argparse
import json
import subprocess
import sys
import sysconfig
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks import machine
from benchmarks.measure import Row, show

Section = Callable[[], Iterable[Row]]
ROOT = Path(__file__).parents[1]
_OURS = tuple(ROOT / name for name in ("jobq", "backends", "benchmarks", "tests"))


@dataclass(frozen=True)
class Options:
    """What the command line says.

    Attributes:
        rounds: of which the median counts.
        scale: of the counts; below 1 for a quick look.
    """

    rounds: int = 1
    scale: float = 1.0

    def scaled(self, count: int) -> int:
        return max(20, int(count * self.scale))


def main(
    description: str | None,
    prepare: Callable[[Options, ExitStack], Mapping[str, Section]],
    *,
    rounds: int,
    peer: Path | None = None,
) -> None:
    """Run a benchmark as its command line says.

    Args:
        description: for --help.
        prepare: returns the sections; what they need is entered into the stack, which is closed behind the last one.
        rounds: unless --rounds is given.
        peer: the Python of the peer's environment, whose modules are compiled too.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("sections", nargs="*", help="all when none is named")
    parser.add_argument(
        "--rounds", type=_at_least_one, default=rounds, help="rounds of each measurement; the median counts"
    )
    parser.add_argument("--scale", type=float, default=1.0, help="of the counts; less for a quick look")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    arguments = parser.parse_args()
    options = Options(arguments.rounds, arguments.scale)
    began = time.monotonic()
    compile_modules(Path(sys.executable), *_OURS, Path(sysconfig.get_path("purelib")))
    if peer is not None:
        compile_modules(peer, peer.parents[1] / "lib")
    print(f"all modules compiled in {time.monotonic() - began:.1f} s", file=sys.stderr)
    with ExitStack() as stack:
        sections = prepare(options, stack)
        if unknown := set(arguments.sections) - set(sections):
            parser.error(f"no such section: {', '.join(sorted(unknown))}; there are {', '.join(sections)}")
        run({name: sections[name] for name in arguments.sections or sections}, as_json=arguments.json)
    print(f"took {time.monotonic() - began:.0f} s", file=sys.stderr)


def _at_least_one(text: str) -> int:
    if int(text) < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return int(text)


def compile_modules(python: Path, *folders: Path) -> None:
    """Compile ahead, so that no first run pays for it; pip does for what it installs, uv and an editor do not."""
    # Packages hold templates and the like that are no Python: what does not compile is not said.
    subprocess.run([python, "-m", "compileall", "-qq", *folders], check=False)


def run(sections: Mapping[str, Section], *, as_json: bool = False) -> None:
    """Run sections and print their rows as they come.

    Raises:
        SystemExit: behind the last one, where any failed.
    """

    def put(row: Row) -> None:
        print(json.dumps(row) if as_json else show(row), flush=True)

    def warn(share: float, when: str) -> None:
        if text := machine.warning(share, when):
            put({"what": text})

    failed = []
    for name, section in sections.items():
        warn(machine.look(), f"before {name}")
        before = machine.read()
        try:
            for row in section():
                put(row)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever it is: reported, and the exit code says so at the end
            traceback.print_exc()
            put({"what": f"FAILED: {name}", "error": f"{type(error).__name__}: {error}"})
            failed.append(name)
        warn(machine.share_of_others(before, machine.read()), f"during {name}")
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")
