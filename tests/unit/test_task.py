"""The task and its wire format: what is refused, what is read, what travels (rules.md 3, A3)."""

import contextlib
import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobq.errors import MalformedTask
from jobq.formats import strict_json
from jobq.task import MAX_BODY_BYTES, MAX_NEW_BYTES, Counters, Task, new_id


def wire(**fields: object) -> bytes:
    return json.dumps({"version": 2, "id": "a", **fields}).encode()


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "not JSON"),
        (b"\xff\xfe", "byte 0: not UTF-8"),
        (b'{"version": 2, "id": "a", "command": "x"', "not JSON"),
        (b"[]", "expected an object, found an array"),
        (b"true", "found a boolean"),
        (b"1", "found a number"),
        (b'{"version": 2, "version": 2, "id": "a", "command": "x"}', "'version': key stands twice"),
        (b'{"version": 2, "id": "a", "kwargs": {"n": {"k": 1, "k": 2}}}', "'k': key stands twice"),
        (b'{"version": 2, "id": "a", "kwargs": {"n": NaN}}', "NaN"),
        (b'{"version": 2, "id": "a", "kwargs": {"n": -Infinity}}', "-Infinity"),
        (b'{"version": 2, "id": "a", "kwargs": {"n": 1e999}}', "too large"),
        (b'{"version": 2, "id": "a", "kwargs": {"n": ' + b"1" * 5000 + b"}}", "5000 digits"),
        (b'{"version": 2, "id": "a", "command": "\\ud800"}', "lone surrogate"),
        (b'{"version": 2, "id": "a", "kwargs": ' + b'{"a":' * 40 + b"1" + b"}" * 40 + b"}", "nested more than 32 deep"),
        (b"[" * 200_000, "nested more than 32 deep"),
        (b'{"version": 2, "id": "a", "command": "' + b"x" * MAX_BODY_BYTES + b'"}', "bytes, at most"),
        (wire(command="x", colour="red"), "colour: unknown field"),
        (wire(command="x", budgets={"lives": 9}), "budgets.lives: unknown field"),
        (wire(), "found none"),
        (wire(command="x", argv=["y"]), "found command and argv"),
        (wire(command=""), "command: "),
        (wire(command="a\0b"), "command: holds a NUL byte"),
        (wire(command=7), "command: "),
        (wire(argv=[]), "argv: "),
        (wire(argv=[""]), "argv: names no program"),
        (wire(argv=["x", 1]), "argv.1: "),
        (wire(argv="x"), "argv: "),
        (wire(kwargs=[1]), "kwargs: "),
        (wire(command="x", env={"A": 1}), "env.A: "),
        (wire(command="x", env={"A=B": "1"}), "env"),
        (wire(command="x", env={"": "1"}), "env"),
        (wire(command="x", cwd="\0"), "cwd: "),
        (wire(command="x", timeout="5"), "timeout: "),
        (wire(command="x", timeout=0), "timeout: "),
        (wire(command="x", timeout=-1), "timeout: "),
        (wire(command="x", timeout=True), "timeout: "),
        (wire(command="x", priority=1.5), "priority: "),
        (wire(command="x", epoch=-1), "epoch: "),
        (wire(command="x", not_before=1e300), "not_before: "),
        (wire(command="x", budgets={"retries": True}), "budgets.retries: "),
        (wire(command="x", id="two words"), "id: "),
        (wire(command="x", id=""), "id: "),
        (b'{"version": 2, "command": "x"}', "id: is missing"),
        (b'{"version": 4, "id": "a", "command": "x"}', "version: unknown version 4"),
        (b'{"version": 3, "id": "a", "command": "x"}', "'command': unknown field in version 3"),
        (b'{"version": true, "id": "a", "command": "x"}', "version: unknown version True"),
        (b'{"id": "a", "command": "x"}', "version: unknown version None"),
    ],
)
def test_refuses_and_says_what_and_where(body: bytes, says: str) -> None:
    with pytest.raises(MalformedTask) as caught:
        Task.decode(body)
    assert says in str(caught.value)
    assert len(str(caught.value)) < 300, "a hostile message must not flood the log"


@settings(deadline=None)  # a machine may be busy
@given(st.binary(max_size=300))
def test_any_bytes_are_a_task_or_malformed(body: bytes) -> None:
    """L4: nothing else may come out, whatever a stranger sends."""
    with contextlib.suppress(MalformedTask):
        Task.decode(body)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


@settings(deadline=None)  # a machine may be busy
@given(JSON)
def test_any_json_is_a_task_or_malformed(value: object) -> None:
    body = json.dumps({"version": 2, "id": "a", "kwargs": value}).encode()
    try:
        assert Task.decode(body).kwargs == value
    except MalformedTask:
        assert not isinstance(value, dict) or "\\ud" in body.decode()


TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=20)


@settings(deadline=None)  # a machine may be busy
@given(
    work=st.one_of(
        st.fixed_dictionaries({"command": TEXT}),
        st.fixed_dictionaries({"argv": st.lists(TEXT, min_size=1, max_size=4)}),
        st.fixed_dictionaries(
            {"call": st.sampled_from(["m:f", "a.b:C.f", "grüße:f"])}, optional={"kwargs": st.just({"n": 1})}
        ),
        st.fixed_dictionaries({"kwargs": st.dictionaries(TEXT, st.integers(-(2**53), 2**53), max_size=3)}),
    ),
    env=st.dictionaries(TEXT.filter(lambda name: "=" not in name), TEXT, max_size=3),
    priority=st.integers(-(2**31), 2**31 - 1),
    timeout=st.none() | st.floats(0.001, 1e6),
    failures=st.integers(0, 5),
    epoch=st.integers(0, 5),
)
def test_round_trip(
    work: dict[str, object],
    env: dict[str, str],
    priority: int,
    timeout: float | None,
    failures: int,
    epoch: int,
) -> None:
    task = Task.new(**work, env=env, priority=priority, timeout=timeout, epoch=epoch).requeued(failures=failures)
    assert Task.decode(task.encode()) == task


def test_ids_are_time_ordered_and_random() -> None:
    ids = [new_id() for _ in range(1000)]
    assert len(set(ids)) == 1000
    assert all(len(text) == 36 and text[14] == "7" and text[19] in "89ab" for text in ids)
    milliseconds = int(ids[-1].replace("-", "")[:12], 16)
    assert abs(milliseconds / 1000 - time.time()) < 5
    assert [text[:13] for text in ids] == sorted(text[:13] for text in ids)


def test_new_refuses_what_it_could_not_send() -> None:
    for fields in (
        {"command": "x" * MAX_BODY_BYTES},
        {"command": "\udc80"},
        {"argv": ["echo", "\udcff"]},
        {"command": "x", "env": {"\udcff": "1"}},
        {"command": "x", "env": {"A": "\udcff"}},
        {"command": "x", "trace_context": {"\udcff": "1"}},
        {"command": "x", "env": {f"a{number}": "" for number in range(2**16 + 1)}},
        {"command": "x", "trace_context": {f"a{number}": "" for number in range(2**16 + 1)}},
        {"command": "x" * 2**17},
        {"argv": ["true", *["a"] * 2**17]},
        {"call": "m:f", "kwargs": {"a": [[]] * 2**17}},
        {"kwargs": {"a": float("nan")}},
        {"kwargs": {"a": {1, 2}}},
        {"command": "x", "colour": "red"},
        {"call": "m:f", "kwargs": {"a": float("nan")}},
        {"call": "m:f", "kwargs": [1]},
    ):
        with pytest.raises(MalformedTask):
            Task.new(**fields)


def test_fingerprint_tells_work_from_bookkeeping() -> None:
    """S8: a repeated push is the same work; another budget is another payload."""
    task = Task.new(command="x", env={"A": "1"})
    same = Task.new(command="x", env={"A": "1"}, not_before=5.0, trace_context={"traceparent": "00-a-b-01"})
    assert task.fingerprint() == same.fingerprint() == task.requeued(failures=1).fingerprint()
    ordered = Task.new(command="x", env={"A": "1", "B": "2"}, id="a"), Task.new(command="x", env={"B": "2", "A": "1"})
    assert ordered[0].fingerprint() == ordered[1].fingerprint()
    others = [
        Task.new(command="y", env={"A": "1"}),
        Task.new(argv=["x"], env={"A": "1"}),
        Task.new(command="x", env={"A": "2"}),
        Task.new(command="x", env={"A": "1"}, cwd="/"),
        Task.new(command="x", env={"A": "1"}, timeout=1),
        Task.new(command="x", env={"A": "1"}, budgets={"retries": 9}),
        Task.new(command="x", env={"A": "1"}, priority=1),
    ]
    assert len({task.fingerprint(), *(other.fingerprint() for other in others)}) == 8
    calls: list[dict[str, object]] = [
        {"call": "m:f"},
        {"call": "m:g"},
        {"call": "m:f", "kwargs": {"n": 1}},
        {"kwargs": {"n": 1}},
    ]
    assert len({Task.new(**call).fingerprint() for call in calls}) == 4
    assert Task.new(call="m:f").fingerprint() == Task.new(call="m:f", kwargs={}).fingerprint()


@pytest.mark.parametrize(
    "name", ["", "f", "m:", ":f", "m:f()", "m.:f", "m:f:g", "a/b:f", "m: f", "m:1f", ".m:f", "m:f\0"]
)
def test_call_names_a_function(name: str) -> None:
    with pytest.raises(MalformedTask, match="call: must name a function as "):
        Task.new(call=name)


@pytest.mark.parametrize("other", [{"command": "x"}, {"argv": ["x"]}])
@pytest.mark.parametrize("more", [{}, {"kwargs": {}}])
def test_one_thing_says_what_runs(other: dict[str, object], more: dict[str, object]) -> None:
    with pytest.raises(MalformedTask, match="exactly one of command, argv, call and kwargs"):
        Task.new(call="m:f", **other, **more)
    if more:
        with pytest.raises(MalformedTask, match=r"found (command|argv) and kwargs"):
            Task.new(**other, **more)


def test_a_variable_of_a_task_is_not_shown_by_its_repr() -> None:
    """rules.md 3, A5."""
    assert "canary" not in repr(Task.new(command="x", env={"TOKEN": "canary"}))


def test_fencing_parts_only_rise() -> None:
    """S3: a requeue raises the generation, a redrive the epoch; nothing is reset."""
    task = Task.new(command="x").requeued(failures=1).requeued(preemptions=1)
    again = task.redriven(deliveries=5)
    assert (task.epoch, task.generation) == (0, 2)
    assert (again.epoch, again.generation) == (1, 2)
    assert (again.counters.failures, again.counters.preemptions, again.counters.ends) == (0, 0, 5)


# --- ai4s-jobq, wire versions 0 and 1 -------------------------------------------------------------------------------


def foreign(kwargs: object, version: int = 1, **fields: object) -> bytes:
    message = {"version": version, "id": "0f" * 16, "kwargs": json.dumps(kwargs), "num_retries": 2, **fields}
    if version == 1:
        message.setdefault("reply_requested", False)
    return json.dumps(message).encode()


@pytest.mark.parametrize("version", [0, 1])
def test_reads_shell_tasks_of_ai4s(version: int) -> None:
    body = foreign({"cmd": "echo $A", "env": {"A": 1}, "cwd": "/tmp", "bg_dirsync_to": None}, version)
    task = Task.decode(body)
    assert (task.command, task.env, task.cwd, task.id) == ("echo $A", {"A": "1"}, "/tmp", "0f" * 16)
    assert task.budgets.retries == 2
    assert Task.decode(task.requeued(failures=1).encode()).counters.failures == 1, "goes back as ours"


def test_reads_callback_tasks_of_ai4s() -> None:
    assert Task.decode(foreign({"cmd": "x", "shape": [1, 2]})).kwargs == {"cmd": "x", "shape": [1, 2]}


def test_what_a_worker_of_ai4s_has_put_back_is_what_was_pushed() -> None:
    own = {"_job_id": "0f" * 16, "_worker_id": "w"}
    assert Task.decode(foreign({"cmd": "x", "env": None} | own)).command == "x"
    assert Task.decode(foreign({"shape": [1, 2]} | own)).kwargs == {"shape": [1, 2]}


def test_a_task_of_ai4s_whose_retries_are_used_up_still_runs_once() -> None:
    assert Task.decode(foreign({"cmd": "x"}, num_retries=-1)).budgets.retries == 0


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (foreign([1]), "kwargs: must hold a JSON object"),
        (foreign({"cmd": "x", "bg_dirsync_to": "https://a"}), "bg_dirsync_to"),
        (foreign({"cmd": 7}), "command"),
        (foreign({"cmd": "x", "env": [1]}), "env: must be an object"),
        (foreign({"cmd": "x"}, reply_requested=True), "reply"),
        (foreign({"cmd": "x"}, num_retries="2"), "num_retries: must be an integer"),
        (foreign({"cmd": "x"}, extra=1), "unknown field in version 1"),
        (b'{"version": 1, "id": "a", "kwargs": "{", "num_retries": 1}', "kwargs: "),
        (b'{"version": 0}', "id: must be a string"),
    ],
)
def test_refuses_what_ai4s_would_have_choked_on(body: bytes, says: str) -> None:
    with pytest.raises(MalformedTask) as caught:
        Task.decode(body)
    assert says in str(caught.value)


def test_depth_is_counted_outside_of_strings() -> None:
    assert strict_json.loads(b'{"a": "' + b"[" * 500 + b'"}')
    assert strict_json.loads(b"[" * 32 + b"]" * 32)
    with pytest.raises(MalformedTask, match="deep"):
        strict_json.loads(rb'["\\",' + b"[" * 32 + b"]" * 32 + b"]")


def test_a_count_without_room_is_no_fault_of_the_program() -> None:
    """Whoever may push may say so; what gives it back must be able to go on."""
    task = Task.decode(b'{"version": 2, "id": "x", "command": "true", "counters": {"ends": 2147483647}}')
    with pytest.raises(MalformedTask, match="ends"):
        task.requeued()


def test_a_string_without_an_end_is_read_once() -> None:
    """Full of escaped quotes, each of which might begin another: 60 KB held a worker up for 25 s (S11)."""
    body = b'{"version":2,"a":[' + b"[]," * 40 + b'"' + b'\\"' * 30_000 + b"\\"
    began = time.monotonic()
    with pytest.raises(MalformedTask, match="not JSON"):
        Task.decode(body)
    assert time.monotonic() - began < 2.0


def test_s7_what_was_written_shorter_before_can_be_written_again() -> None:
    """Another JSON writer has no zero in 1e-7: a large task of such numbers could be read, and not put back."""
    numbers = ",".join(["1e-7", "1e16"] * 100_000)
    text = 'of text 1e-07 and "1e+16" \\\\'
    fields = {"version": 2, "id": "a", "call": "m:f", "kwargs": {"t": text}}
    head = json.dumps(fields, separators=(",", ":"))[:-2]
    body = f'{head},"n":[{numbers}]}}}}'.encode()
    assert len(body) < MAX_BODY_BYTES
    task = Task.decode(body)
    again = Task.decode(task.requeued(failures=1).encode())
    assert again.kwargs == task.kwargs
    assert again.kwargs is not None
    assert (again.kwargs["t"], again.counters.failures) == (text, 1)
    assert len(json.dumps(task.kwargs, separators=(",", ":"))) > MAX_BODY_BYTES, "or it would fit anyhow"


def test_a_message_says_in_which_book_its_task_is_kept() -> None:
    # An Azure queue's own word, beside the work: it stays through requeues and redrives, and nobody signs it.
    task = Task.new(command="true", id="s7.1", batch="s7", params={"a": 1}, env={"A": "b"}, priority=3)
    kept = Task.decode(task.in_ledger("s7").encode())
    assert kept.batch == "s7"
    assert kept.fingerprint() == task.fingerprint()
    for later in (kept, kept.requeued(failures=1), kept.redriven(deliveries=2), kept.released()):
        again = Task.decode(later.encode())
        assert again.work is not None
        assert (again.work.ledger, again.work.signatures, again.batch) == ("s7", (), "s7")
        assert (again.command, again.env, again.priority, again.counters) == ("true", {"A": "b"}, 3, later.counters)
    assert Task.decode(task.in_ledger("s7~5f0c12ab").encode()).batch == "s7", "whichever of that name it is"
    at_its_end = Task.decode(Task.new(command="true").in_ledger(".s7~5f0c12ab").encode())
    assert at_its_end.batch is None


@pytest.mark.parametrize(
    "book", ['""', '"."', '"a b"', "7", '"..s7"', "[]", '"' + "x" * 65 + '"', '"s7~"', '"s7~x"', '"~1"']
)
def test_a_book_that_no_batch_has_is_refused(book: str) -> None:
    body = Task.new(command="true").in_ledger("s7").encode().replace(b'"ledger":"s7"', b'"ledger":' + book.encode())
    with pytest.raises(MalformedTask, match="ledger: names no batch"):
        Task.decode(body)


def test_misfits_are_written_where_there_are_some_and_count_for_nothing_else() -> None:
    """S8, S7."""
    task = Task.new(command="true", needs=["a100"])
    assert b"misfits" not in task.requeued(failures=1).encode() + Task.new(command="true").encode()
    later = Task.decode(task.released(misfits=1).released(misfits=1).encode())
    assert later.counters == Counters(ends=2, misfits=2)
    assert (later.counters.given_back, later.released().counters.given_back) == (0, 1)
    assert later.fingerprint() == task.fingerprint()
    assert later.redriven(deliveries=2).counters == Counters(ends=2)


def test_the_largest_task_has_room_for_all_its_counts() -> None:
    """S7: or its misfit could not be counted, and would pass for a crash."""
    asked: dict[str, Any] = {"call": "m:f", "needs": ["a100"]}
    size = MAX_NEW_BYTES - 4 - len(Task.new(kwargs={"a": ""}, **asked).encode())  # a moment has more or fewer digits
    task = Task.new(kwargs={"a": "x" * size}, **asked)
    assert MAX_NEW_BYTES - 12 <= len(task.encode()) <= MAX_NEW_BYTES
    most = 2**31 - 1
    counters = Counters(failures=most, preemptions=most, ends=most, misfits=1000)
    assert len(task.copied({"generation": most, "counters": counters, "epoch": most}).encode()) <= MAX_BODY_BYTES
