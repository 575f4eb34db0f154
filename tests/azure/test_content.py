"""What stands in a message: any bytes go there and back, and nothing grows past the service's limit."""

import base64
import xml.etree.ElementTree as ET
from xml.sax.saxutils import escape

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobq.errors import MalformedTask
from jobq.task import Task
from jobq_azure.storage.large_payloads import Payloads
from jobq_azure.storage.message_format import (
    HEADROOM_BYTES,
    MAX_COUNT,
    MAX_TEXT_BYTES,
    MessageContent,
    MessageNotes,
    body_of,
    size_of,
    text_of,
)
from jobq_azure.storage.push import text_or_none

_TEXT = st.text()  # with all that XML cannot hold
_BODIES = st.one_of(
    st.binary(),
    _TEXT.map(lambda text: text.encode("utf-8", "surrogatepass")),
    st.binary().map(base64.b64encode),
    st.sampled_from([b"", b"true", b"#jobq {}\n", b"#jobq", b"\r\n", b"a\rb", b"\xef\xbb\xbf{}"]),
)
_BESIDE = st.builds(
    MessageNotes,
    checkpoint=st.none() | _TEXT,
    before=st.integers(0, MAX_COUNT),
    id=_TEXT,
    dead=st.none() | st.dictionaries(_TEXT, st.integers() | _TEXT, max_size=3),
    blob=_TEXT,
    origin=_TEXT,
    changed=st.none() | st.dictionaries(_TEXT, st.integers() | _TEXT, max_size=3),
)


@settings(deadline=None)  # a machine may be busy
@given(_BODIES)
def test_any_body_comes_back(body: bytes) -> None:
    text = text_of(body)
    assert body_of(text) == body
    assert body_of(_through_xml(text)) == body, "XML has changed it"
    assert MessageContent.read(_through_xml(MessageContent(body).text())) == MessageContent(body)


@settings(deadline=None)  # a machine may be busy
@given(_BODIES, _BESIDE)
def test_what_stands_beside_comes_back(body: bytes, beside: MessageNotes) -> None:
    content = MessageContent(body, beside)
    assert MessageContent.read(_through_xml(content.text())) == content


@settings(deadline=None)  # a machine may be busy
@given(st.text(alphabet=st.characters(codec="utf-8")))
def test_any_text_of_strangers_is_read(text: str) -> None:
    assert MessageContent.read(text).body == (body_of(text))
    assert MessageContent.read("#jobq " + text).body is not None
    assert MessageContent.read("#jobq " + text + "\nbody").body is not None


@settings(deadline=None)  # a machine may be busy
@given(st.text(alphabet="a&<>\"'\u00e4\U0001f600\n"))
def test_size_is_what_goes_over_the_wire(text: str) -> None:
    assert size_of(text) == len(escape(text).encode())


def test_a_task_stays_readable_text() -> None:
    body = Task.new(command="echo 'ü' && true").encode()
    assert text_of(body) == body.decode()


def test_base64_of_other_tools_is_read() -> None:
    body = Task.new(command="true").encode()
    assert MessageContent.read(base64.b64encode(body).decode()).body == body


def test_foreign_lines_are_body() -> None:
    for line in ('#jobq {"checkpoint": 7}', '#jobq {"other": "x"}', "#jobq []", "#jobq {", '#jobq {"before": true}'):
        text = f"{line}\n{{}}"
        assert MessageContent.read(text) == MessageContent(text.encode())


def test_a_task_at_the_limit_survives_its_counters() -> None:
    room = MAX_TEXT_BYTES - HEADROOM_BYTES
    bare = size_of(text_of(Task.new(command="x").encode()))
    task = Task.new(command="x" * (room - bare))
    for _ in range(300):
        task = task.requeued(failures=2**20, preemptions=2**20, ends=2**20)
    grown = MessageContent(task.encode(), MessageNotes(before=2**31)).text()
    assert size_of(grown) <= MAX_TEXT_BYTES


def _through_xml(text: str) -> str:
    found = ET.fromstring(f"<m>{escape(text)}</m>").text
    return found or ""


def test_refusal_names_size_limit_and_remedy() -> None:
    nowhere = Payloads(None, "queue", "account/queue")
    with pytest.raises(MalformedTask, match=r"takes 7\d{4} bytes .* 64512 .* BlobEndpoint .* file or blob"):
        text_or_none(Task.new(command="x" * 70_000), nowhere)
