"""A task's files, saved by `jobq checkpoint --dir` or when it is stopped, found by its next attempt (S9, S4, P8)."""

import asyncio
import hashlib
import io
import os
import signal
import sys
import tarfile
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from jobq.clock import Moment
from jobq.errors import BackendUnavailable, ConfigurationError, LockLost
from jobq.fencing import FencingNumber
from jobq.files import folder_store as folder_module
from jobq.files.archive import ArchiveRefused, _digest, pack, unpack
from jobq.files.file_store import place_at
from jobq.files.folder_store import FolderStore
from jobq.files.location import checked_place
from jobq.files.remove_tree import remove_tree
from jobq.formats.checkpoint_format import StoredCheckpoint
from jobq.lease.keeper import LeaseKeeper
from jobq.lease.timing import LeaseTiming
from jobq.run.attempt.attempt_journal import AttemptJournal
from jobq.run.attempt.checkpoints import Archives, AttemptCheckpoints
from jobq.run.process.spawner import OtherKind, StartFailed
from jobq.run.process.task_folder import TaskFolder
from jobq.settings import Settings
from jobq.task import Task, new_id
from jobq.testing.clock import VirtualClock
from tests.azure.emulator import ACCOUNT, Azurite
from tests.cli.conftest import Jobq, eventually
from tests.unit.scripted_delivery import ScriptedDelivery

from .conftest import SHORT, Place

if TYPE_CHECKING:
    import subprocess

pytestmark = pytest.mark.check

JOBQ = f"{sys.executable} -m jobq"
LIMIT = 1024 * 1024
# What an attempt finds goes into `seen`; the first saves one file and loses the next; the second is asked to stop.
SCRIPT = f"""
cd "$JOBQ_CHECKPOINT_DIR"; ls | tr '\\n' ' ' >> "$OLDPWD/seen"; echo "$JOBQ_CHECKPOINT" >> "$OLDPWD/seen"
case $(ls | wc -l) in
0) mkdir one; {JOBQ} checkpoint text && {JOBQ} checkpoint --dir && touch lost "$OLDPWD/saved"; sleep 60;;
1) trap 'touch two; exit 1' TERM; touch "$OLDPWD/running"; sleep 60 & wait;;
esac
"""


@pytest.fixture(params=["sqlite and a folder", "Azurite"])
def stage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Place, str, dict[str, str]]]:
    """A queue, a store, and what signs in."""
    jobq = Jobq(tmp_path)
    spec, store, variables = "demo", str(tmp_path / "shared"), dict[str, str]()
    if request.param == "Azurite":
        azurite: Azurite = request.getfixturevalue("azurite")
        variables = {"JOBQ_CONNECTION_STRING": azurite.connection_string, "JOBQ_VISIBILITY_TIMEOUT": "4s"}
        spec, store = f"{ACCOUNT}/q{new_id()[-12:]}", f"az://{ACCOUNT}/c{new_id()[-12:]}/below"
    yield Place(jobq, spec), store, variables
    for process in jobq.running:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


def test_files_outlive_a_kill_and_a_stop(stage: tuple[Place, str, dict[str, str]]) -> None:
    """What was acknowledged before a SIGKILL is there; so is what a stopped task left; nothing is once it is done."""
    place, store, variables = stage
    env = SHORT | {"JOBQ_CHECKPOINT_STORE": store} | variables
    place("push", "-c", SCRIPT, env=variables)
    seen = place.jobq.folder / "seen"

    def start() -> "subprocess.Popen[bytes]":
        return place.jobq.start(place.spec, "worker", "--idle-timeout", "1m", env=env, stdout=-3, stderr=-3)

    guardian = start()
    eventually((place.jobq.folder / "saved").exists)
    place.kill_worker(guardian)
    worker = start()
    eventually((place.jobq.folder / "running").exists)
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(20) == 143
    place("worker", "--quiet-output", env=env)
    assert seen.read_text().splitlines() == ["", "one text", "one two text"]

    async def left() -> list[str]:
        async with place_at(store, Settings.from_environment(variables)) as files:
            found = await files.names("")
            queues = [name for name in found if not name.startswith(".")]
            return [name for queue in queues for name in await files.names(queue + "/")]

    assert asyncio.run(left()) == []


class Slow(FolderStore):
    """A store that takes a file and answers never."""

    async def put(self, name: str, source: Path) -> None:
        await super().put(name, source)
        await asyncio.Event().wait()


class Held:
    """One attempt with a folder, on a clock of its own."""

    def __init__(
        self,
        tmp_path: Path,
        place: FolderStore,
        *,
        checkpoint: str | None = None,
        task: Task | None = None,
        fencing: FencingNumber | None = None,
    ) -> None:
        clock = VirtualClock()
        self.delivery = ScriptedDelivery(clock, task=task)
        self.delivery.fencing = fencing or self.delivery.fencing
        if checkpoint is not None:
            self.delivery.checkpoint_value = checkpoint
        self.keeper = LeaseKeeper(
            AttemptJournal(self.delivery), since=Moment.of(clock), timing=LeaseTiming(lease=60.0), clock=clock
        )
        self.folder = TaskFolder()
        archives = Archives(place, "q", LIMIT)
        self.checkpoints = AttemptCheckpoints(self.delivery, self.keeper, archives, self.folder.new_folder)


def _archives(root: Path) -> list[str]:
    return [path.name for path in root.rglob("*.tar")]


async def test_a_stale_attempt_saves_nothing(tmp_path: Path) -> None:
    """Its archive is put, its record is refused, and the archive goes again (S4)."""
    async with FolderStore(tmp_path / "store") as place:
        held = Held(tmp_path, place)
        try:
            await held.checkpoints.restore()
            held.keeper.lock_lost_event.set()
            with pytest.raises(LockLost):
                await held.checkpoints.checkpoint_folder()
            assert _archives(tmp_path) == []
        finally:
            held.folder.close()


@pytest.mark.parametrize("created", [None, 1.0])
async def test_tasks_of_one_id_keep_their_files_apart(tmp_path: Path, created: float | None) -> None:
    """A Storage Queue knows no ids: the later task removed what the earlier one had saved (S9, S11)."""
    async with FolderStore(tmp_path / "store") as place:
        task = Task.new(command="true", id="same").copied({"created": created})
        both = [
            Held(tmp_path, place, task=task, fencing=number)
            for number in (FencingNumber(0, 0, 1), FencingNumber(9, 0, 1))
        ]
        later = both[1].checkpoints
        try:
            for held in both:
                await held.checkpoints.restore()
                await held.checkpoints.checkpoint_folder()
            for _ in range(2):
                await later.checkpoint_folder()
            assert len(_archives(tmp_path)) == 2, "one of each: its own former ones go"
            await later.forget()
            (kept,) = _archives(tmp_path)
            assert both[0].checkpoints._saved.archive == f"q/same/{kept}"
        finally:
            for held in both:
                held.folder.close()


async def test_files_of_another_life_are_found_and_removed(tmp_path: Path) -> None:
    """As after a redrive: their names are of another life, and the checkpoint names them."""
    async with FolderStore(tmp_path / "store") as place:
        task = Task.new(command="true")
        for forgets in (False, True):
            (tmp_path / "packed").mkdir(exist_ok=True)
            digest = pack(tmp_path / "packed", tmp_path / "archive", LIMIT)
            name = f"q/{task.id}/0.0.1-000001-{digest}.tar"
            await place.put(name, tmp_path / "archive")
            held = Held(tmp_path, place, task=task, checkpoint=StoredCheckpoint("v", name).encode())
            try:
                await held.checkpoints.restore()
                if not forgets:
                    await held.checkpoints.checkpoint_folder()
                    assert [f"q/{task.id}/{each}" for each in _archives(tmp_path)] == [held.checkpoints._saved.archive]
                await held.checkpoints.forget()
                assert _archives(tmp_path) == []
            finally:
                held.folder.close()


async def test_a_store_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told so in bounded time, and a full disk too; nothing is recorded."""
    monkeypatch.setattr("jobq.run.attempt.checkpoints.SAVE_SECONDS", 0.1)
    async with Slow(tmp_path / "store") as place:
        held = Held(tmp_path, place)
        try:
            await held.checkpoints.restore()
            with pytest.raises(BackendUnavailable, match="took longer"):
                await held.checkpoints.checkpoint_folder()

            def full(_path: Path) -> None:
                raise OSError(28, os.strerror(28))

            monkeypatch.setattr(folder_module, "_sync", full)
            with pytest.raises(BackendUnavailable, match="No space left"):
                await held.checkpoints.checkpoint_folder()
            assert held.checkpoints.value is None
        finally:
            held.folder.close()


async def test_files_that_are_gone_start_no_task(tmp_path: Path) -> None:
    """An acknowledged checkpoint is never taken for none (S9), and no other task's files are."""
    async with FolderStore(tmp_path / "store") as place:
        await place.scratch()
        for name, told in (("q/{id}/0.0.1-000001-00.tar", "are gone"), ("q/other/0.0.1-000001-00.tar", "another")):
            held = Held(tmp_path, place)
            stored = StoredCheckpoint("v", name.format(id=held.delivery.id)).encode()
            held = Held(tmp_path, place, checkpoint=stored)
            try:
                assert held.checkpoints.value == "v"
                with pytest.raises(StartFailed, match=told):
                    await held.checkpoints.restore()
            finally:
                held.folder.close()


async def test_a_store_without_its_mark_is_taken_for_one_that_is_not_mounted(tmp_path: Path) -> None:
    """Tasks with a checkpoint were buried on each machine that had not mounted the share; they wait for it (S9)."""
    store = tmp_path / "store"
    store.mkdir()
    async with FolderStore(store) as place:
        assert list(store.iterdir()) == [], "a place for a share stays as empty as it was"
        stored = StoredCheckpoint("v", "q/x/0.0.1-000001-00.tar").encode()
        held = Held(tmp_path, place, task=Task.new(command="true", id="x"), checkpoint=stored)
        try:
            with pytest.raises(StartFailed, match="not mounted") as raised:
                await held.checkpoints.restore()
            assert raised.value.transient
        finally:
            held.folder.close()


async def test_a_store_that_was_emptied_takes_files_again_unless_it_is_another_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`find STORE -delete` took the scratch folder along, and no running worker could save from then on."""
    store = tmp_path / "store"
    async with FolderStore(store) as place:
        held = Held(tmp_path, place)
        try:
            await held.checkpoints.restore()
            await held.checkpoints.checkpoint_folder()
            remove_tree(store)
            await held.checkpoints.checkpoint_folder()
            assert len(_archives(store)) == 1
            remove_tree(store)
            monkeypatch.setattr(place, "_device", -1)  # a mount takes root: as if it had been another disk's
            with pytest.raises(BackendUnavailable, match="not mounted"):
                await held.checkpoints.checkpoint_folder()
            assert not store.exists()
        finally:
            held.folder.close()


async def test_what_befalls_the_workers_own_folder_is_no_missing_archive(tmp_path: Path) -> None:
    """A task that removed it had all later tasks buried, since "the files of its checkpoint are gone: None"."""
    async with FolderStore(tmp_path / "store") as place:
        held = Held(tmp_path, place)

        def gone() -> Path:
            raise FileNotFoundError(2, "No such file or directory")

        held.checkpoints._make_folder = gone
        try:
            with pytest.raises(StartFailed, match="cannot be had now") as raised:
                await held.checkpoints.restore()
            assert raised.value.transient
        finally:
            held.folder.close()


def test_what_cannot_be_kept_is_refused(tmp_path: Path) -> None:
    """Pipes, links that lead out, and too much: said with its name, and nothing is left behind half."""
    made: tuple[Callable[[Path], object], ...] = (
        lambda folder: os.mkfifo(folder / "x"),
        lambda folder: (folder / "x").symlink_to("/etc/passwd"),
        lambda folder: (folder / "x").symlink_to("../../up"),
        lambda folder: (folder / "x").write_bytes(bytes(LIMIT)),
    )
    for number, make in enumerate(made):
        folder = tmp_path / f"{number}"
        folder.mkdir()
        make(folder)
        with pytest.raises(ArchiveRefused, match=r"'x'|more than 1 MiB"):
            pack(folder, tmp_path / f"{number}.tar", LIMIT)


def test_a_file_that_is_too_large_is_not_written_first(tmp_path: Path) -> None:
    """A sparse file of a terabyte takes a task no room, and would fill the disk of its neighbours (S11)."""
    folder, target = tmp_path / "from", tmp_path / "x.tar"
    folder.mkdir()
    with (folder / "x").open("wb") as stream:
        stream.truncate(64 * LIMIT)
    with pytest.raises(ArchiveRefused, match="more than 1 MiB"):
        pack(folder, target, LIMIT)
    assert target.stat().st_size < LIMIT


async def test_what_became_of_the_folder_itself_fails_no_stop(tmp_path: Path) -> None:
    """Removed, a link elsewhere, or nested without end: a preemption gives the task back all the same (P8, S11)."""
    async with FolderStore(tmp_path / "store") as place:
        held = Held(tmp_path, place)
        try:
            await held.checkpoints.restore()
            folder = held.checkpoints.folder
            assert folder is not None
            folder.rmdir()
            assert held.checkpoints.is_empty()
            folder.symlink_to("/etc")
            with pytest.raises(ConfigurationError, match="a link stands"):
                await held.checkpoints.checkpoint_folder()
            folder.unlink()
            (folder / "/".join("x" * 150)).mkdir(parents=True)
            with pytest.raises(ConfigurationError, match="deep"):
                await held.checkpoints.checkpoint_folder()
            held.checkpoints.close()
            eventually(lambda: not folder.exists())
        finally:
            held.folder.close()


def test_links_and_modes_come_back(tmp_path: Path) -> None:
    source, target = tmp_path / "from", tmp_path / "to"
    (source / "sub").mkdir(parents=True)
    target.mkdir()
    (source / "sub" / "run").write_text("x")
    (source / "sub" / "run").chmod(0o700)
    os.link(source / "sub" / "run", source / "again")
    (source / "latest").symlink_to("sub")
    (source / "empty").write_text("")
    digest = pack(source, tmp_path / "a", LIMIT)
    unpack(tmp_path / "a", target, LIMIT, digest)
    assert (target / "latest" / "run").read_text() == (target / "again").read_text() == "x"
    assert os.access(target / "sub" / "run", os.X_OK)
    assert (target / "empty").read_text() == ""


@pytest.mark.parametrize("names_bytes", [2**20, 4000])
def test_s9_what_is_saved_can_be_restored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names_bytes: int) -> None:
    """The names were bounded where they are read alone: a save was acknowledged that no attempt could ever restore."""
    monkeypatch.setattr("jobq.files.archive._ALL_EXTENDED_BYTES", names_bytes)
    source, target = tmp_path / "from", tmp_path / "to"
    (source / "sub").mkdir(parents=True)
    target.mkdir()
    for name in (b"caf\xe9", b"line\nbreak", b" =", b"l" * 255):
        (Path(os.fsdecode(os.fsencode(source) + b"/" + name))).write_bytes(name)
    (source / "up").symlink_to("sub/../sub")
    (source / "round").symlink_to("round")
    for number in range(10):
        (source / "sub" / f"{number}{'n' * 200}").touch()
    with nullcontext() if names_bytes > 4000 else pytest.raises(ArchiveRefused, match="too long"):
        digest = pack(source, tmp_path / "a", LIMIT)
        unpack(tmp_path / "a", target, LIMIT, digest)
        assert {path.name for path in target.iterdir()} == {path.name for path in source.iterdir()}


def test_s9_a_path_that_only_fits_into_this_folder_is_refused(tmp_path: Path) -> None:
    """Below a longer TMPDIR it would be longer than a path may be."""
    source = tmp_path / "from"
    source.mkdir()
    descriptors = [os.open(source, os.O_RDONLY)]
    for _ in range(20):
        os.mkdir("d" * 195, dir_fd=descriptors[-1])
        descriptors.append(os.open("d" * 195, os.O_RDONLY, dir_fd=descriptors[-1]))
    for descriptor in descriptors:
        os.close(descriptor)
    with pytest.raises(ArchiveRefused, match="3900 bytes"):
        pack(source, tmp_path / "a", LIMIT)


async def test_a_worker_that_takes_less_leaves_the_task_to_others(tmp_path: Path) -> None:
    """Its own JOBQ_CHECKPOINT_MAX buried what another one had saved (S9)."""
    async with FolderStore(tmp_path / "store") as place:
        saves = Held(tmp_path, place)
        finds = Held(tmp_path, place, task=saves.delivery.task)
        try:
            await saves.checkpoints.restore()
            assert saves.checkpoints.folder is not None
            (saves.checkpoints.folder / "x").write_bytes(bytes(2000))
            await saves.checkpoints.checkpoint_folder()
            finds.checkpoints._saved = saves.checkpoints._saved
            finds.checkpoints._archives = Archives(place, "q", 2000)
            with pytest.raises(OtherKind, match="JOBQ_CHECKPOINT_MAX"):
                await finds.checkpoints.restore()
        finally:
            saves.folder.close()
            finds.folder.close()


def _member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", size: int = 0) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, link, size
    return info


@pytest.mark.parametrize(
    "members",
    [
        [_member("../out")],
        [_member("/tmp/out")],
        [_member("a", tarfile.SYMTYPE, "/")],
        [_member("a", tarfile.SYMTYPE, ".."), _member("a/out")],
        [_member("d", tarfile.DIRTYPE), _member("l", tarfile.SYMTYPE, "d"), _member("l/x", tarfile.SYMTYPE, "y")],
        [_member("a", tarfile.LNKTYPE, "/etc/passwd")],
        [_member("a", tarfile.CHRTYPE)],
        [_member("a", tarfile.FIFOTYPE)],
        [_member("big", size=LIMIT + 1)],
    ],
    ids=lambda members: members[-1].name,
)
def test_hostile_archives(tmp_path: Path, members: list[tarfile.TarInfo]) -> None:
    """Nothing is written outside of the folder, no device is made, no more than the cap comes out."""
    archive, folder = tmp_path / "a", tmp_path / "in" / "side"
    folder.mkdir(parents=True)
    with tarfile.open(archive, "w") as made:
        for member in members:
            made.addfile(member, io.BytesIO(bytes(member.size)))
    with archive.open("rb") as stream:
        digest = _digest(stream)
    try:
        unpack(archive, folder, LIMIT, digest)
    except ArchiveRefused:
        pass
    else:  # tarfile makes a relative path of an absolute one
        assert members[0].name == "/tmp/out"
    assert [path.name for path in (tmp_path / "in").iterdir()] == ["side"]
    assert not Path("/tmp/out").exists()
    with pytest.raises(ArchiveRefused, match="hash"):
        unpack(archive, folder, LIMIT, "0" * 32)


def _raw(kind: bytes, size: bytes, name: bytes = b"x", rest: bytes = b"") -> bytes:
    """Return a member as bytes, with whatever stands in its header."""
    header = bytearray(512)
    header[0 : len(name)], header[100:108] = name, b"0000644\0"
    header[124:136], header[156:157], header[257:265] = size.ljust(12, b"\0"), kind, b"ustar\x0000"
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header) + rest.ljust(-(-len(rest) // 512) * 512, b"\0")


def _pax(**values: str) -> bytes:
    lines = b""
    for name, value in values.items():
        text = f" {name}={value}\n".encode()
        length = len(text) + len(str(len(text) + 2))
        lines += str(length).encode() + text
    return _raw(tarfile.XHDTYPE, b"%011o" % len(lines), rest=lines)


@pytest.mark.parametrize(
    "archive",
    [
        _raw(tarfile.XHDTYPE, b"%011o" % 2**32),
        _raw(tarfile.GNUTYPE_LONGNAME, b"%011o" % 2**20, rest=b"n" * 2**20) + _raw(b"0", b"0"),
        _raw(tarfile.XHDTYPE, b"\xff" * 12),
        _raw(b"0", b"\xff" * 12),
        _pax(path="../" * 1000 + "etc/passwd") + _raw(b"0", b"0"),
        _pax(size="-4096") + _raw(b"0", b"0"),
        _pax(size="9" * 400) + _raw(b"0", b"0"),
        _pax(mtime="nan") + _raw(b"0", b"0"),
        _pax(path="a\0b") + _raw(b"0", b"0"),
        _pax(**{"GNU.sparse.major": "1", "GNU.sparse.minor": "0"}) + _raw(b"0", b"00000001000", rest=b"9" * 512),
        _raw(b"S", b"00000000000"),
        b"".join(_pax(comment="c") for _ in range(3000)) + _raw(b"0", b"0"),
        b"\0" * 100,
    ],
    ids=range(13),
)
def test_a_header_that_is_none_is_refused_and_no_fault_of_ours(tmp_path: Path, archive: bytes) -> None:
    """ValueError, OverflowError and RecursionError came out of tarfile; a header of 4 GiB was read whole."""
    file, folder = tmp_path / "a", tmp_path / "in" / "side"
    folder.mkdir(parents=True)
    file.write_bytes(archive + bytes(1024))
    digest = hashlib.sha256(file.read_bytes()).hexdigest()[:32]
    tracemalloc.start()
    try:
        with suppress(ArchiveRefused):
            unpack(file, folder, LIMIT, digest)
        assert tracemalloc.get_traced_memory()[1] < 8 * 2**20
    finally:
        tracemalloc.stop()
    assert [path.name for path in (tmp_path / "in").iterdir()] == ["side"]


@pytest.mark.parametrize(
    "archive",
    [
        _raw(b"5", b"0", b"x") + _raw(b"0", b"0", b"x"),
        _raw(b"0", b"0", b"x") + _raw(b"0", b"0", b"x/y"),
        _pax(path="n" * 300) + _raw(b"0", b"0"),
        _raw(b"0", b"0", b"x") + _raw(b"2", b"0", b"x"),
        _raw(b"0", b"0", b"."),
    ],
    ids=["file on folder", "file in file", "too long", "link on file", "the folder itself"],
)
def test_names_that_contradict_each_other_are_refused_for_good(tmp_path: Path, archive: bytes) -> None:
    """Such an archive passed for one that a full disk keeps from being restored, and its task went on for ever."""
    file, folder = tmp_path / "a", tmp_path / "folder"
    folder.mkdir()
    file.write_bytes(archive + bytes(1024))
    with pytest.raises(ArchiveRefused, match=r"cannot be (kept|restored)"):
        unpack(file, folder, LIMIT, hashlib.sha256(file.read_bytes()).hexdigest()[:32])


def test_a_chain_of_links_does_not_lead_out(tmp_path: Path) -> None:
    """Each alone stays inside by its text: `sub/up` is the folder, so `sub/up/..` is what holds it."""
    file, folder = tmp_path / "a", tmp_path / "in" / "side"
    folder.mkdir(parents=True)
    with tarfile.open(file, "w") as made:
        for member in (
            _member("sub", tarfile.DIRTYPE),
            _member("sub/up", tarfile.SYMTYPE, ".."),
            _member("out", tarfile.SYMTYPE, "sub/up/../secret"),
        ):
            made.addfile(member)
    with pytest.raises(ArchiveRefused, match="'out' in the archive of the checkpoint leads out of its folder"):
        unpack(file, folder, LIMIT, hashlib.sha256(file.read_bytes()).hexdigest()[:32])


def test_places() -> None:
    for text in ("/mnt/x", "rel", "az://acct/logs", "https://acct.blob.core.windows.net/logs/below"):
        assert checked_place(text) == text
    for text in ("az://acct", "s3://x/y", "https://acct.blob.core.windows.net/c?sig=x", "", "http://acct/c"):
        with pytest.raises(ValueError, match=r"signature|container|folder"):
            checked_place(text)
    with pytest.raises(ConfigurationError, match="CHECKPOINT_STORE"):
        Settings.from_environment({"JOBQ_CHECKPOINT_STORE": "s3://x/y"})


def test_no_store(tmp_path: Path) -> None:
    """Without one there is no folder, and saving it is refused in plain words."""
    jobq = Jobq(tmp_path)
    jobq("demo", "push", "-c", f'echo "${{JOBQ_CHECKPOINT_DIR-none}}"; {JOBQ} checkpoint --dir; echo $? > code')
    told = jobq("demo", "worker", env={"JOBQ_SCHEDULED_EVENTS": "off"})
    assert (tmp_path / "code").read_text() == "3\n"
    assert "none" in told.out
    assert "--checkpoint-store" in told.out + told.err


def test_a_worker_without_the_store_leaves_files_to_those_that_have_it(tmp_path: Path) -> None:
    """It took the task again and again, and charged it a preemption each time (S7)."""
    jobq = Jobq(tmp_path)
    command = f'test $JOBQ_ATTEMPT = 1 || exit 0; cd "$JOBQ_CHECKPOINT_DIR"; touch x; {JOBQ} checkpoint --dir; exit 1'
    jobq("demo", "push", "--max-preemptions", "0", "-c", command)
    variables = {"JOBQ_CHECKPOINT_STORE": "store", "JOBQ_BACKOFF": "0s"}
    jobq("demo", "worker", "--max-tasks", "1", env=variables, code=None)
    told = jobq("demo", "worker", env={"JOBQ_BACKOFF": "0s"})
    assert "given no --checkpoint-store" in told.err
    jobq("demo", "worker", "--idle-timeout", "1s", env=variables)
    (size,) = jobq("demo", "size", "--json").objects
    assert (size["visible"], size["scheduled"], size["dead"]) == (0, 0, 0)
