"""The pairs of docs/from-parallel.md: what `jobq run` prints and makes is what GNU parallel itself does."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.docs.runner import blocks_of, lines_of

pytestmark = pytest.mark.check

PAIRS: Final = [[line.text for line in lines_of(block)] for block in blocks_of("docs/from-parallel.md")]
# Programs of the examples that few machines have. These stand-ins print how they were called.
STAND_INS: Final = (
    *("cmd", "convert", "curl", "do_something", "do_step1", "do_step2", "host", "lame", "ping", "traceroute"),
    *("unzip", "wget"),
)
FILES: Final = {
    "a b.html": "x FOO BAR y\n", "c.html": "FOO BAR", "sub dir/d.html": "FOO BAR\n", "one.wav": "", "two three.wav": "",
    "x.log": "x", "Y z.LOG.log": "y", "p.jpg": "", "q r.jpg": "", "sub dir/s.jpg": "", "s.zip": "", "t u.zip": "",
    "sounddir/v.wav": "", "sounddir/w x.wav": "", "mydir/keep": "", "destdir/keep": "", "list": "p.jpg\nq r.jpg\n",
    "hosts.txt": "a.example\nat.1.2.3.4.example\nmissing.example\n",
    "urlfile": "http://a\nhttp://missing\nhttp://c d\n",
    "file_list": "list\nnot there\n", "xlist": "1\n2 3\n", "ylist": "p\nq\n", "in.txt": "aardvark\nbabble\ncab\ndab\n",
    "zipped.txt": "z", "also zipped.txt": "a", "textfile": "one\n two  $x\n", "foo.es.ext": "f",
    "b r.es.ext": "b", "table_file.tsv": "foo\tbar\nbaz \t quux\n",
    "jobs_to_run": "echo 1\necho '2  3'\n", "00:05": "", "01:10": "",
    **{f"pict{number:02}.jpg": "" for number in range(13)},
}  # fmt: skip


def made(folder: Path) -> dict[str, bytes]:
    """Return what is in a folder, without what the two keep in forms of their own."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if name.startswith("out/") or not path.is_file():
            continue
        # A compressed file bears the time of its original.
        found[name] = (
            subprocess.run(["zcat"], input=path.read_bytes(), stdout=-1, check=True).stdout
            if path.suffix == ".gz"
            else path.read_bytes()
        )
    return found


def ran(folder: Path, line: str, *, in_order: bool) -> tuple[list[str], dict[str, bytes]]:
    """Run a line in a new folder; return what it printed and what is there then."""
    folder.mkdir(parents=True)
    for name, text in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    subprocess.run("gzip zipped.txt 'also zipped.txt'", shell=True, cwd=folder, check=True)
    programs = folder.parent / f"programs of {folder.name}"
    programs.mkdir()
    stand_in = 'printf "%s" "${0##*/}"; printf " <%s>" "$@"; echo; ! echo "$@" | grep -q missing'
    for name in STAND_INS:
        (programs / name).write_text(f"#!/bin/sh\n{stand_in}\n")
    (programs / "jobq").write_text(f'#!/bin/bash\nexec "{sys.executable}" -m jobq "$@"\n')
    for program in programs.iterdir():
        program.chmod(0o755)
    home = folder.parent / f"home of {folder.name}"
    (home / ".parallel").mkdir(parents=True)
    (home / ".parallel" / "will-cite").touch()
    environment = {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "HOME": str(home),
        "SHELL": "/bin/bash",
        "LC_ALL": "C.UTF-8",
    }
    completed = subprocess.run(
        ["bash", "-c", line], cwd=folder, env=environment, capture_output=True, timeout=60, check=False
    )
    lines = completed.stdout.decode().splitlines()
    return lines if in_order else sorted(lines), made(folder)


def test_there_are_many() -> None:
    assert len(PAIRS) >= 39
    assert {len(pair) for pair in PAIRS} == {2}
    assert len({ours for _, ours in PAIRS}) == len(PAIRS)


@pytest.mark.skipif(shutil.which("parallel") is None, reason="GNU parallel is not installed here")
@pytest.mark.parametrize(("theirs", "ours"), PAIRS)
def test_both_do_the_same(theirs: str, ours: str, tmp_path: Path) -> None:
    in_order = " -k " in theirs
    expected = ran(tmp_path / "theirs", theirs, in_order=in_order)
    assert ran(tmp_path / "ours", ours, in_order=in_order) == expected
    assert expected[0] or expected[1] != ran(tmp_path / "neither", "true", in_order=in_order)[1], "it does something"
