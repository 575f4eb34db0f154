"""What goes over the wire is what was meant: any text, at any length, there and back."""

import math
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobq.errors import MalformedTask
from jobq_azure.common.errors import Unreadable
from jobq_azure.storage.account import Account
from jobq_azure.storage.message_format import MAX_TEXT_BYTES, size_of
from jobq_azure.storage.queue_messages import read, written
from tests.azure.emulator import ACCOUNT, connection_string
from tests.azure.stage import Stage
from tests.azure.wire.raw_service import RECEIPT, answer, messages, serving

# Production 2 of XML 1.0.
_LEGAL = st.text(
    st.characters(codec="utf-8", exclude_categories=("Cc", "Cs")) | st.sampled_from("\t\n\r&<>]\"'")
).filter(lambda text: "\ufffe" not in text and "\uffff" not in text)
_SPECIAL = [
    "plain",
    "",
    " ",
    "\n\t leading and trailing \n",
    "&amp; & &#13; &lt; <b>bold</b> ]]> <!-- no --> <![CDATA[x]]> <?pi?> \"quoted\" 'too'",
    "a\rb\r\nc\n\rd",
    "\x7f\x85\xa0\u2028\u2029\ufeff\ufffd",
    "äöü ß € 漢字 🦀 \U0010ffff e\u0301",
    '{"version": 2, "command": "echo \\"$HOME\\" && true"}',
    "%20+%2B=&x=1#fragment?",
]


@settings(deadline=None)  # a machine may be busy
@given(_LEGAL)
def test_any_text_is_written_as_xml(text: str) -> None:
    """Read by a parser that is not ours alone: it turns what is not escaped into something else."""
    assert (ET.fromstring(written(text)).findtext("MessageText") or "") == text


@settings(deadline=None)  # a machine may be busy
@given(_LEGAL)
def test_the_limit_is_counted_as_it_is_written(text: str) -> None:
    frame = len(written(""))
    assert len(written(text.replace("\r", ""))) - frame == size_of(text.replace("\r", ""))


@pytest.mark.parametrize("character", ["\x00", "\x01", "\x08", "\x0b", "\x1f", "\ud800", "\ufffe", "\uffff"])
async def test_what_xml_cannot_hold_is_refused_unsent(character: str) -> None:
    """The service would take some of it, and fail each receive that holds it; of others nobody would know (S5)."""
    async with serving(answer(201, messages())) as service:
        async with Account(ACCOUNT, connection_string(service.port), "") as account:
            wire = account.wire("queue")
            for call in (wire.put(f"a{character}b"), wire.update("the-id", RECEIPT, 30, f"a{character}b")):
                with pytest.raises(MalformedTask, match=f"U\\+{ord(character):04X}"):
                    await call
        assert service.asked == []


@pytest.mark.parametrize("text", _SPECIAL)
async def test_any_text_comes_back_from_the_service(stage: Stage, text: str) -> None:
    wire = await stage.wire()
    await wire.put(text)
    (found,) = await wire.get(1, 30)
    assert (found.text, found.deliveries, found.expires) == (text, 1, 0)
    receipt = await wire.update(found.id, found.receipt, 0, f"{text}+")
    assert receipt != found.receipt
    (looked,) = await wire.peek(32)
    assert (looked.id, looked.text, looked.receipt) == (found.id, f"{text}+", "")
    (again,) = await wire.get(1, 30)
    await wire.delete(again.id, again.receipt)
    assert await wire.get(1, 30) == []


# Not of two bytes: Azurite takes a body apart where a packet ends, and stores another character for each half.
@pytest.mark.parametrize("character", ["x", "&", ">"])
async def test_the_largest_message_comes_back_and_a_larger_is_told(stage: Stage, character: str) -> None:
    most = character * (MAX_TEXT_BYTES // size_of(character))
    wire = await stage.wire()
    await wire.put(most)
    (found,) = await wire.get(1, 30)
    assert found.text == most
    assert await wire.update(found.id, found.receipt, 30, most[::-1])
    with pytest.raises(MalformedTask, match="larger than a Storage Queue takes"):
        await wire.put("x" * (2 * MAX_TEXT_BYTES))


async def test_thirty_two_of_the_largest_come_in_one_answer(stage: Stage) -> None:
    wire = await stage.wire()
    most = "&" * (MAX_TEXT_BYTES // 5)
    for _ in range(32):
        await wire.put(most)
    assert [each.text for each in await wire.get(100, 30)] == [most] * 32


async def test_an_answer_without_end_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory of a worker is not the sender's to fill."""
    monkeypatch.setattr("jobq_azure.common.storage_requests._MOST_BYTES", 1_000_000)
    chunk = b"%x\r\n" % 500_000 + b" " * 500_000 + b"\r\n"
    head = b"HTTP/1.1 200 OK\r\nx-ms-request-id: 1\r\nTransfer-Encoding: chunked\r\n\r\n"
    declared = answer(200, b" " * 2_000_000, length=10**12)
    for huge in (head + chunk * 8, declared):
        async with serving(huge) as service, Account(ACCOUNT, connection_string(service.port), "") as account:
            with pytest.raises(Unreadable, match="more than 1000000 bytes"):
                await account.wire("queue").get(32, 30)


@pytest.mark.parametrize(
    "body",
    [
        b'<!DOCTYPE q [<!ENTITY a "x">]>' + messages("&a;").removeprefix(b"\xef\xbb\xbf").partition(b"?>")[2],
        messages("x").replace(b"?>", b'?><!DOCTYPE q SYSTEM "file:///etc/passwd">'),
        messages("x").decode("utf-8-sig").replace("utf-8", "utf-16").encode("utf-16"),
        messages("x").replace(b"<PopReceipt>", b"<PopReceipt>first</PopReceipt><PopReceipt>"),
        messages("x").replace(b"</MessageText>", b"</MessageText><MessageText>y</MessageText>"),
        messages("x").replace(b"<DequeueCount>3", b"<DequeueCount>-1"),
        messages("x").replace(b"<DequeueCount>3", b"<DequeueCount>" + b"9" * 5000),
        messages("x").replace(b"QueueMessagesList", b"EnumerationResults"),
    ],
    ids=range(8),
)
def test_what_no_service_answers_is_not_read(body: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        read(body)


def test_what_an_answer_says_of_a_message() -> None:
    (forever,) = read(messages("&lt;a&gt; &#13; &amp;amp;", ""))[:1]
    assert (forever.text, forever.deliveries, forever.inserted, forever.expires) == ("<a> \r &amp;", 3, 1795168800, 0)
    (ends,) = read(messages("x", expires="Fri, 20 Nov 2026 10:00:05 GMT"))
    assert ends.expires == ends.inserted + 5
    (untold,) = read(b"<QueueMessagesList><QueueMessage><MessageId>a</MessageId></QueueMessage></QueueMessagesList>")
    assert (untold.receipt, untold.deliveries, untold.inserted, untold.expires) == ("", 0, 0, 0)
    assert math.isclose(ends.inserted, 1795168800)


async def test_messages_that_share_a_receipt_are_settled_each_for_itself(stage: Stage) -> None:
    """Azurite gives one receipt to all messages of a receive (S11)."""
    wire = await stage.wire()
    for n in range(3):
        await wire.put(str(n))
    first, second, third = await wire.get(3, 30)
    await wire.delete(second.id, second.receipt)
    await wire.update(first.id, first.receipt, 0)
    await wire.delete(third.id, third.receipt)
    assert [each.id for each in await wire.get(32, 30)] == [first.id]


async def test_two_receipts_in_one_answer_are_none() -> None:
    twice = answer(204, x_ms_popreceipt="one").replace(b"\r\n\r\n", b"\r\nX-Ms-PopReceipt: two\r\n\r\n")
    async with serving(twice) as service, Account(ACCOUNT, connection_string(service.port), "") as account:
        with pytest.raises(Unreadable, match="without a receipt"):
            await account.wire("queue").update("the-id", RECEIPT, 30)
