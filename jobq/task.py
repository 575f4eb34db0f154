"""What a user submits, how an attempt ends, and the JSON of both on the wire.

Wire format, version 2: one JSON object, UTF-8. Fields that are None are left out; an unknown field is refused, so a
newer writer raises the version. Versions 0 and 1 are those of ai4s-jobq, read by `jobq.formats.wire_v1`; version 3
holds work that was signed, or that asks something of a machine, `jobq.formats.wire_v3`.
"""

import json
import os
import re
import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from enum import StrEnum
from typing import Any, Final, Never, Self, TypeAlias, TypeVar

from jobq.errors import MalformedTask
from jobq.formats import strict_json, task_bounds, task_fields, wire_v1, wire_v3
from jobq.formats.checked import Checked, FieldError, field, kind_of, nested
from jobq.formats.lazy_dataclass import dataclass
from jobq.resources import request
from jobq.resources.request import Resources

WIRE_VERSION: Final = 2
MAX_BODY_BYTES: Final = 1024 * 1024
MAX_NEW_BYTES: Final = MAX_BODY_BYTES - 80  # five counts are raised later, by 51 digits at most, and one is added
_SYNONYMS: Final = {"cmd": "command", "shell": "command", "args": "argv", "func": "call", "function": "call"} | {
    "cpu": "cpus",
    "gpu": "gpus",
    "memory": "mem",
    "tags": "needs",
}
_BESIDE_WORK: Final = wire_v3.STATE | wire_v3.BOOKKEEPING
_WORK: Final = {"command", "argv", "call", "cwd", "timeout", "priority", "budgets", "on_exit", "batch"} | {
    "resources",
    "needs",
}
_RESOURCES: Final[tuple[str, ...]] = ("cpus", "gpus", "mem")


def new_id() -> str:
    """Return a UUID of version 7: time-ordered by millisecond, 74 random bits (RFC 9562 section 5.7)."""
    milliseconds = time.time_ns() // 1_000_000
    number = milliseconds << 80 | 0x7 << 76 | int.from_bytes(os.urandom(10)) & ~(0xF << 76)
    number = number & ~(0b11 << 62) | 0b10 << 62
    text = f"{number:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


_T = TypeVar("_T", bound=Checked)
JsonValue: TypeAlias = "dict[str, JsonValue] | list[JsonValue] | str | bool | int | float | None"
_EXPONENT: Final = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"|e-0|e\+')  # 1e-07 and 1e+16, and strings, which stay
_write: Final = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, check_circular=False, separators=(",", ":")
).encode


class Budgets(Checked):
    """How often a task may end badly before it goes to the dead-letter place (S7).

    Attributes:
        retries: runs after a failure (an exit code, a time-out, a memory limit).
        preemptions: runs after the worker gave the task back.
        crashes: runs after an end that nobody could record, or that was not the task's doing.
    """

    retries: int = field(task_fields.count, 3)
    preemptions: int = field(task_fields.count, 100)
    crashes: int = field(task_fields.count, 3)


class Counters(Checked):
    """What the envelope remembers of the attempts so far (S7).

    Attributes:
        failures: ends that consumed a retry.
        preemptions: ends by giving back.
        ends: ends that were recorded at all; deliveries minus this are crashes.
        misfits: those of them by workers that could never run it: no budget, but nobody waits for ever.
    """

    failures: int = field(task_fields.count, 0)
    preemptions: int = field(task_fields.count, 0)
    ends: int = field(task_fields.count, 0)
    misfits: int = field(task_fields.count, 0)

    def as_dict(self, names: Collection[str] | None = None) -> dict[str, Any]:
        """As of `Checked`; without misfits where there are none: most tasks have none, and each message is shorter."""
        found = super().as_dict(names)
        if not self.misfits:
            found.pop("misfits", None)
        return found

    @property
    def given_back(self) -> int:
        """How often it came back uncharged, as far as the envelope says, though its worker could have run it."""
        return max(0, self.ends - self.failures - self.preemptions - self.misfits)

    def raised(self, *, failures: int = 0, preemptions: int = 0, ends: int = 1, misfits: int = 0) -> "Counters":
        """Return them after one more attempt.

        Raises:
            MalformedTask: one of them has no room left.
        """
        raised = {
            "failures": self.failures + failures,
            "preemptions": self.preemptions + preemptions,
            "ends": self.ends + ends,
            "misfits": self.misfits + misfits,
        }
        return _validated(Counters, raised)


class _State(Checked):
    """What changes of a task while its work stays as it is."""

    epoch: int = field(task_fields.epoch, 0)
    generation: int = field(task_fields.count, 0)
    counters: Counters = field(nested(Counters), Counters())
    not_before: float | None = field(task_fields.moment)


class _Kept(Checked):
    """What the queue keeps of a task beside its body."""

    batch: str | None = field(task_fields.batch)
    params: dict[str, str | int | float] | None = field(task_fields.params)


class Task(Checked):
    """One unit of work; immutable, `requeued` and `redriven` return new ones.

    Exactly one of `command`, `argv` and `call` says what to run; or there are `kwargs` alone, for a library callback.

    Attributes:
        command: a shell command, run by `bash -c` (`sh -c` where there is no bash).
        argv: a program and its arguments, run without a shell.
        call: a Python function, `package.module:function`, called with `kwargs` in a process of its own; a coroutine
            function is run by asyncio. What it returns is the task's result.
        kwargs: JSON arguments by name, for `call` or for a library callback.
        env: variables added to the worker's environment.
        cwd: working directory; None = the worker's.
        timeout: seconds one attempt may run; None = no limit.
        id: names the task; time-ordered and random when not given.
        priority: higher first, where the backend has `priorities`.
        not_before: wall time in seconds since the epoch before which it is not delivered.
        created: wall time in seconds since the epoch; None = unknown.
        budgets, counters: see there.
        on_exit: rules for certain ends, see `jobq.formats.exit_rules`; None = the budgets alone decide.
        epoch: raised by each redrive from the dead-letter place (S3). A store where an id can be pushed again begins it
            above all that it has forgotten.
        generation: raised by each requeue (S3).
        trace_context: W3C `traceparent`, `tracestate`, `baggage` of the submitter.
        batch: the name of the batch that it belongs to (`jobq.batches`); its body does not say so, the queue does.
        resources: what it asks of a machine; `new` takes cpus, gpus and mem as well: 0.25, 1, "12G".
        needs: the tags that a worker must have, all of them.
        params: texts and numbers by name, 4 KiB at most, which a table of results shows; likewise.
        work: its text as a producer has signed it, which all else but the counters comes from; None = nobody has.

    Raises:
        MalformedTask: from `new` and `decode`; says what is wrong and where.
    """

    command: str | None = field(task_fields.filled)
    argv: tuple[str, ...] | None = field(task_fields.argv)
    call: str | None = field(task_fields.function)
    kwargs: dict[str, JsonValue] | None = field(task_fields.mapping)
    env: dict[str, str] = field(task_fields.variables, make=dict, is_shown=False)  # may hold secrets (A5)
    cwd: str | None = field(task_fields.filled)
    timeout: float | None = field(task_fields.seconds)
    id: str = field(task_fields.identifier, make=new_id)
    priority: int = field(task_fields.priority, 0)
    not_before: float | None = field(task_fields.moment)
    created: float | None = field(task_fields.moment)
    budgets: Budgets = field(nested(Budgets), Budgets())
    counters: Counters = field(nested(Counters), Counters())
    on_exit: tuple[str, ...] | None = field(task_fields.rules)
    epoch: int = field(task_fields.epoch, 0)
    generation: int = field(task_fields.count, 0)
    trace_context: dict[str, str] = field(task_fields.variables, make=dict)
    batch: str | None = field(task_fields.batch)
    params: dict[str, str | int | float] | None = field(task_fields.params)
    resources: Resources | None = field(nested(Resources))
    needs: tuple[str, ...] | None = field(request.needs)
    work: wire_v3.Work | None = field(task_fields.signed, is_shown=False)

    def _check(self) -> None:
        given = [name for name in ("command", "argv", "call") if getattr(self, name) is not None]
        if self.kwargs is not None and given != ["call"]:
            given.append("kwargs")
        if len(given) != 1:
            found = "none" if not given else " and ".join(given)
            raise FieldError(
                f"exactly one of command, argv, call and kwargs says what to run (call takes kwargs), found {found}"
            )

    @classmethod
    def new(cls, *given: Never, **fields: Any) -> Self:
        """Return a task created now.

        Args:
            *given: nothing has a place of its own.
            **fields: the attributes above; `argv` may be any sequence of strings.

        Raises:
            TypeError: something is given without its name.
            MalformedTask: a field is missing, unknown, of a wrong type or out of range.
        """
        if given:
            raise TypeError(
                "Task.new takes each field by its name: command='echo hello', argv=..., call=... or kwargs=..."
            )
        if asked := {name: fields.pop(name) for name in _RESOURCES if name in fields}:
            fields["resources"] = _asked(asked, fields.get("resources"))
        for name, value in fields.items():
            if name not in cls.FIELDS:
                raise MalformedTask(_meant(name, value), name)
        if isinstance(fields.get("argv"), str):
            raise MalformedTask("is a list of words, such as ['ls', '-l']; a line for the shell is a command", "argv")
        if isinstance(kwargs := fields.get("kwargs"), dict):
            # Refuses what `decode` would: what JSON cannot hold, numbers too long, depth beyond the task's own.
            fields["kwargs"] = strict_json.loads(strict_json.dumps(kwargs), strict_json.MAX_DEPTH - 1)
            if fields["kwargs"] != kwargs:
                raise MalformedTask(
                    f"holds {task_fields.odd_for_json(kwargs)}, which would arrive as something else", "kwargs"
                )
        return _validated(cls, {"created": time.time(), **fields}).checked()

    def checked(self) -> Self:
        """Return the task itself; raises MalformedTask when it holds more than each later door takes.

        Those are the readers of a queue, requests over HTTP, and the start of a program.
        """
        body = self.encode()
        if len(body) > MAX_NEW_BYTES:
            raise MalformedTask(f"{len(body)} bytes, at most {MAX_NEW_BYTES} fit")
        if len(body) > task_bounds.SMALL_BYTES:
            task_bounds.check_names("env", self.env)
            task_bounds.check_names("trace_context", self.trace_context)
            task_bounds.check_arguments(self.command, self.argv, self.env)
            task_bounds.check_values(body if self.work is None else self.work.text.encode())
        return self

    @classmethod
    def decode(cls, body: bytes) -> "Task":
        """Return the task in a message.

        Raises:
            MalformedTask: the bytes are no task of a version that this code knows.
        """
        if len(body) > MAX_BODY_BYTES:
            raise MalformedTask(f"{len(body)} bytes, at most {MAX_BODY_BYTES} are read")
        fields = strict_json.loads(body)
        if not isinstance(fields, dict):
            raise MalformedTask(f"expected an object, found {kind_of(fields)}")
        version = fields.pop("version", None)
        if type(version) is int and version in (0, 1):
            return cls.new(**wire_v1.read(version, fields))
        if type(version) is int and version == wire_v3.VERSION:
            work, own, state = wire_v3.read(fields)
            return _validated(cls, {**own, "work": work}).with_state(state)
        if type(version) is not int or version != WIRE_VERSION:
            known = f"this jobq reads 0 to {wire_v3.VERSION}"
            raise MalformedTask(f"unknown version {ascii(version)[:40]}; {known}", "version")
        if stray := sorted(fields.keys() & wire_v3.BOOKKEEPING):
            raise MalformedTask("unknown field", stray[0])
        if "id" not in fields:
            raise MalformedTask("is missing", "id")  # a default would give it another name at each delivery
        return _validated(cls, fields)

    def encode(self) -> bytes:
        """Return the task as it goes on the wire; raises MalformedTask when it is too large."""
        work = self.work
        if work is None and (self.resources or self.needs):  # which version 2 lacks
            work = self._as_work()
        if work is None:
            fields = self.as_dict()
            for name in wire_v3.BOOKKEEPING:
                fields.pop(name, None)
            text = _write({"version": WIRE_VERSION, **fields})
            body = text.encode()
            if len(body) > MAX_BODY_BYTES:  # what another program has written shorter must fit again (S7)
                body = _EXPONENT.sub(_shortest, text).encode()
        else:
            body = wire_v3.write(work, _write(self.as_dict(wire_v3.STATE)).encode())
        if len(body) > MAX_BODY_BYTES:
            raise MalformedTask(f"{len(body)} bytes, at most {MAX_BODY_BYTES} fit")
        return body

    def fingerprint(self) -> bytes:
        """Return 16 bytes that are equal for two submissions of the same work (S8).

        The time of the push, its delay, trace context and counters do not count; budgets, priority and timeout do.
        """
        work = _write(self.as_dict(_WORK)).encode()
        if self.env or self.kwargs:  # the order of their names says nothing
            work += json.dumps([self.env, self.kwargs], sort_keys=True).encode()
        if self.work is not None and self.work.signatures:  # unsigned, it might be refused where this is run
            work += b" signed"  # by whom is no part of it: a push goes on after its key was replaced
        from hashlib import blake2b  # noqa: PLC0415 - as `digest`

        return blake2b(work, digest_size=16).digest()

    def with_state(self, fields: Mapping[str, Any]) -> "Task":
        """Return the same work with other counters, epoch, generation and date, as JSON holds them.

        Raises:
            MalformedTask: one is unknown, of a wrong type or out of range.
        """
        return self.copied(_validated(_State, fields).__dict__)

    def with_bookkeeping(self, fields: Mapping[str, Any]) -> "Task":
        """Return the same task with a batch and params, as JSON holds them; nothing that was signed changes.

        Raises:
            MalformedTask: one is unknown or of a wrong type.
        """
        return self.copied(_validated(_Kept, fields).__dict__)

    def requeued(self, *, failures: int = 0, preemptions: int = 0, ends: int = 1, misfits: int = 0) -> "Task":
        """Return the next generation, with its counters raised by this much; see `Counters.raised`."""
        raised = self.counters.raised(failures=failures, preemptions=preemptions, ends=ends, misfits=misfits)
        return self.counted(raised)

    def counted(self, counters: Counters) -> "Task":
        """Return the next generation of the same work, with these counters (S3, S7)."""
        return self.copied({"generation": self.generation + 1, "not_before": None, "counters": counters})

    def released(self, *, misfits: int = 0) -> "Task":
        """Return the same task with one more end recorded: a delivery that was never started is not a crash (S7)."""
        ends, misfits = self.counters.ends + 1, self.counters.misfits + misfits
        return self.copied({"counters": self.counters.copied({"ends": ends, "misfits": misfits})})

    def in_batch(self, name: str) -> "Task":
        """Return the task as it is pushed to a batch."""
        if self.batch == name:
            return self
        return self.copied({"batch": name})

    def in_ledger(self, book: str) -> "Task":
        """Return the task as its message says that a ledger keeps it; see `wire_v3.Work.ledger`."""
        return self.copied({"work": replace(self.work or self._as_work(), ledger=book)})

    def _as_work(self) -> wire_v3.Work:
        fields = {name: value for name, value in self.as_dict().items() if name not in _BESIDE_WORK}
        return wire_v3.Work(text=_write(fields), id=self.id)

    def in_epoch(self, epoch: int) -> "Task":
        """Return the task as it is pushed in an epoch, or is found to have been (S3)."""
        return self if self.epoch == epoch else self.copied({"epoch": epoch})

    def redriven(self, *, deliveries: int) -> "Task":
        """Return the next epoch with fresh budgets (S3).

        Args:
            deliveries: what the service's count will start from; those were ends of the former epoch.
        """
        fresh = Counters(failures=0, preemptions=0, ends=deliveries)
        epoch = min(self.epoch + 1, task_fields.MAX_EPOCH)  # which who may send messages can write into one
        return self.copied({"epoch": epoch, "not_before": None, "counters": fresh})


class OutcomeKind(StrEnum):
    """How one attempt ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    LOCK_LOST = "lock_lost"
    CANCELED = "canceled"
    PREEMPTED = "preempted"
    CRASHED = "crashed"


@dataclass(frozen=True, kw_only=True)
class Usage:
    """What an attempt's whole process tree used; `jobq.run.process.usage` says how far the figures go.

    Attributes:
        cpu_seconds: user and system time; None = unknown.
        max_rss_bytes: the peak of resident memory; None = unknown.
        processes: the most that were seen alive at once.
    """

    cpu_seconds: float | None = None
    max_rss_bytes: int | None = None
    processes: int = 1


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How one attempt ended: a value, settled in a separate step (P7).

    Attributes:
        kind: see OutcomeKind.
        detail: what happened, in plain words.
        exit_code: of the task's leading process, when it exited by itself.
        signal: the number of the signal that ended it, when one did.
        duration: seconds from start to end.
        output_tail: the last bytes of standard output and standard error, as text.
        output: the same, more of it, for the journal.
        value: what a library callback returned, or a command wrote to $JOBQ_RESULT_FILE.
        value_lost: why the value that there was is not kept; empty = it is, or there was none.
        start_failed: nothing was ever executed.
        out_of_memory: the kernel killed it, or a process of it, for want of memory.
        over_memory_limit: it failed because it was killed over the memory limit.
        usage: what its processes used; None for a callback in the worker's process, and for what was never started.
    """

    kind: OutcomeKind
    detail: str = ""
    exit_code: int | None = None
    signal: int | None = None
    duration: float = 0.0
    output_tail: str = ""
    output: str = ""
    value: JsonValue = None
    value_lost: str = ""
    start_failed: bool = False
    out_of_memory: bool = False
    over_memory_limit: bool = False
    usage: Usage | None = None


@dataclass(frozen=True, kw_only=True)
class TaskResult:
    """What a task came to: given to `complete`, and what a journal answers with.

    Attributes:
        exit_code: 0 for a process that succeeded; None for a callback in the worker's own, and for a signal.
        value: JSON that the callback returned, or that the command wrote to $JOBQ_RESULT_FILE.
        duration: seconds the last attempt took.
        output_tail: the last bytes of its output, as text.
        outcome: an OutcomeKind: how the last attempt ended.
        signal: the number of the signal that ended it.
        started, ended: wall time in seconds since the epoch; None = unknown.
        host: of the worker; empty = unknown.
        attempt: the number of the last attempt; 0 = unknown.
        usage: what it used; None = unknown.
        detail: how it ended, in plain words.
    """

    exit_code: int | None = None
    value: JsonValue = None
    duration: float = 0.0
    output_tail: str = ""
    outcome: str = OutcomeKind.SUCCEEDED
    signal: int | None = None
    started: float | None = None
    ended: float | None = None
    host: str = ""
    attempt: int = 0
    usage: Usage | None = None
    detail: str = ""

    @property
    def succeeded(self) -> bool:
        """Whether the task is done."""
        return self.outcome == OutcomeKind.SUCCEEDED


def _shortest(found: re.Match[str]) -> str:
    return {"e-0": "e-", "e+": "e"}.get(found[0], found[0])


def _validated(cls: type[_T], fields: Mapping[str, Any]) -> _T:
    try:
        return cls(fields)
    except FieldError as error:
        raise MalformedTask(error.what, error.where) from None


def _asked(given: Mapping[str, Any], resources: object) -> dict[str, int]:
    """Return the resources of a task to which numbers are given as people have them."""
    if resources is not None:
        raise MalformedTask(f"is given as resources, too: say {' and '.join(given)} alone", next(iter(given)))
    try:
        return request.from_people(given)
    except FieldError as error:
        raise MalformedTask(error.what, error.where) from None


def _meant(name: str, value: object) -> str:
    """Return what to say of a field that no task has, by the names that options and other libraries have for one."""
    budget = name.removeprefix("num_").removeprefix("max_")
    if budget in Budgets.FIELDS:
        return f"unknown field; it is a budget: budgets={{{budget!r}: {value!r:.20}}}"
    if name == "delay":
        return "unknown field; not_before=time.time() + SECONDS says it"
    from difflib import get_close_matches  # noqa: PLC0415 - rare

    known = [field for field in Task.FIELDS if field != "work"] + list(_RESOURCES)
    near = _SYNONYMS.get(name) or next(iter(get_close_matches(name, known, n=1)), None)
    return f"unknown field; did you mean {near}?" if near else f"unknown field; a task has {', '.join(known)}"
