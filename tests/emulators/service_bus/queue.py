"""One queue of the emulated service as a state machine: no input or output, time from an injected clock.

ACTIVE -> LOCKED (receive) -> gone (complete), ACTIVE (abandon, expiry), DEFERRED, or into the dead-letter sub-queue.
DEFERRED -> LOCKED (receive by number) -> as above, but DEFERRED again (abandon, expiry). SCHEDULED -> ACTIVE when its
time comes. All calls are made from one thread. Times are seconds since the epoch by the clock's wall: the service has
one clock, its own.
"""

import heapq
import itertools
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from jobq.clock import Clock
from tests.emulators.service_bus.dedup import Window
from tests.emulators.service_bus.description import DEAD_LETTER_TEXT, DEAD_LETTERS, Description
from tests.emulators.service_bus.errors import Invalid, LockLost, MessageMissing, TooLarge
from tests.emulators.service_bus.fidelity import Fidelity
from tests.emulators.service_bus.message import Content, Message, State

_NO_LIMIT: Final = 2**31


class Queue:
    """A queue, or a dead-letter sub-queue.

    Args:
        description: what it is made with.
        clock: its wall is the service's time.
        fidelity: where the service is contested.
        on_timer: called when there is a new instant at which something will happen by itself.
        is_dead_letters: whether this is a sub-queue, which has none of its own.

    Attributes:
        size: bytes of all messages.
    """

    def __init__(
        self,
        description: Description,
        clock: Clock,
        fidelity: Fidelity,
        on_timer: Callable[[], None],
        *,
        is_dead_letters: bool = False,
    ) -> None:
        self.description = description
        self.created = clock.wall()
        self.size = 0
        self.listeners: set[Callable[[], None]] = set()
        self.dead: Queue | None = None
        self._clock = clock
        self._fidelity = fidelity
        self._on_timer = on_timer
        self._numbers = itertools.count(1)
        self._messages: dict[int, Message] = {}
        self._locks: dict[uuid.UUID, Message] = {}
        self._expired_locks: dict[uuid.UUID, Message] = {}  # of messages that nobody has taken since
        self._ready: list[int] = []
        self._timers: list[tuple[float, int]] = []
        self._window = Window(description.dedup_window, clock)
        if not is_dead_letters:
            name = f"{description.name}/{DEAD_LETTERS}"
            below = replace(description, name=name, max_delivery_count=_NO_LIMIT, dedup_window=0.0, time_to_live=None)
            self.dead = Queue(below, clock, fidelity, on_timer, is_dead_letters=True)

    # Looking

    def messages(self) -> list[Message]:
        """Return all that is held, by sequence number."""
        self.sweep()
        return [self._messages[number] for number in sorted(self._messages)]

    def count(self, *states: State) -> int:
        """Return how many messages are in one of these states."""
        return sum(message.state in states for message in self.messages())

    def peek(self, first: int, most: int) -> list[Message]:
        """Return messages in any state from a sequence number on, without locking them."""
        return [message for message in self.messages() if message.number >= first][:most]

    # Sending

    def send(self, contents: Sequence[Content]) -> list[int]:
        """Take a message, or a batch as a whole; return the sequence numbers, 0 for a duplicate that was dropped.

        Raises:
            TooLarge: nothing was taken.
        """
        size = sum(content.size for content in contents)
        if size > self.description.max_message_bytes:
            raise TooLarge(size, self.description.max_message_bytes)
        self.sweep()
        numbers = [0 if self._window.has_seen(content.message_id) else self._enqueue(content) for content in contents]
        self._notify()
        return numbers

    def adopt(self, message: Message) -> None:
        """Take a message that comes from elsewhere, as a dead letter does, under a new sequence number."""
        message.number = next(self._numbers)
        self._keep(message)
        self._make_active(message)
        self._notify()

    def cancel_scheduled(self, numbers: Iterable[int]) -> None:
        """Take scheduled messages back; raises MessageMissing, and takes none then."""
        self.sweep()
        found = [self._in_state(number, State.SCHEDULED) for number in numbers]
        for message in found:
            self._remove(message)

    # Receiving

    def receive(self, *, destructive: bool = False) -> Message | None:
        """Lock the next message, or take it for good; None = nothing is there."""
        self.sweep()
        while self._ready:
            message = self._messages.get(heapq.heappop(self._ready))
            if message is None or message.state is not State.ACTIVE:
                continue
            if destructive:
                self._remove(message)
            else:
                self._lock(message)
            return message
        return None

    def receive_deferred(self, numbers: Iterable[int]) -> list[Message]:
        """Lock deferred messages; raises MessageMissing, and locks none then."""
        self.sweep()
        found = [self._in_state(number, State.DEFERRED) for number in numbers]
        for message in found:
            self._lock(message)
        return found

    # Settling; each raises LockLost

    def held(self, lock: uuid.UUID, name: str | None = None) -> Message:
        """Return the message of a lock.

        Args:
            lock: its token.
            name: what REST calls the message: its id or its sequence number; None = do not ask.
        """
        self.sweep()
        message = self._locks.get(lock)
        if message is None and self._fidelity.expired_lock_settles:
            message = self._expired_locks.get(lock)
        if message is None or (name is not None and name not in (str(message.number), message.content.message_id)):
            raise LockLost
        return message

    def renew(self, lock: uuid.UUID) -> float:
        """Extend a lock by the queue's duration, from now; return when it ends."""
        message = self.held(lock)
        self._lock(message, lock)
        return message.locked_until

    def complete(self, lock: uuid.UUID) -> None:
        """Remove the message."""
        self._remove(self.held(lock))

    def abandon(self, lock: uuid.UUID, *, counts: bool = True, properties: Mapping[str, Any] | None = None) -> None:
        """Put the message back at its place; one that was deferred stays so.

        Args:
            lock: its token.
            counts: whether the delivery counts; not for AMQP's `released`.
            properties: what to change of the application's.
        """
        message = self.held(lock)
        self._modify(message, properties)
        self._unlock(message, counts=counts)
        self._notify()

    def defer(self, lock: uuid.UUID, properties: Mapping[str, Any] | None = None) -> None:
        """Put the message aside: it is received by its sequence number alone."""
        message = self.held(lock)
        self._modify(message, properties)
        self._forget_lock(message)
        message.state, message.is_deferred = State.DEFERRED, True

    def dead_letter(
        self,
        lock: uuid.UUID,
        reason: str | None = None,
        description: str | None = None,
        properties: Mapping[str, Any] | None = None,
    ) -> None:
        """Move the message to the dead-letter sub-queue; raises Invalid for texts over 4,096 characters."""
        message = self.held(lock)
        longest = max(len(reason or ""), len(description or ""))
        if longest > DEAD_LETTER_TEXT and self._fidelity.refuses_long_dead_letter_text:
            raise Invalid(f"A dead-letter reason or description has {longest} characters, over {DEAD_LETTER_TEXT}.")
        self._modify(message, properties)
        self._bury(message, reason, description)

    # Time

    def sweep(self) -> float | None:
        """Let happen what time has brought; return when the next thing may happen."""
        now = self._clock.wall()
        while self._timers and self._timers[0][0] <= now:
            message = self._messages.get(heapq.heappop(self._timers)[1])
            if message is not None:
                self._ripen(message, now)
        return self._timers[0][0] if self._timers else None

    def _ripen(self, message: Message, now: float) -> None:
        if message.state is State.LOCKED and message.locked_until <= now:
            lock = message.lock
            assert lock is not None
            if self._unlock(message, counts=True):
                self._expired_locks[lock] = message
        elif message.state is State.SCHEDULED and (message.content.scheduled_for or 0) <= now:
            self._activate(message)
        elif message.state is State.ACTIVE and message.expires is not None and message.expires <= now:
            self._expire(message)
        else:
            return
        self._notify()

    def _activate(self, message: Message) -> None:
        message.enqueued = message.content.scheduled_for or message.enqueued
        if self._fidelity.activation_renumbers:
            del self._messages[message.number]
            message.number = next(self._numbers)
            self._messages[message.number] = message
        self._make_active(message)

    def _expire(self, message: Message) -> None:
        if self.dead is not None and self.description.dead_letters_expired:
            self._bury(message, "TTLExpiredException", "The message expired and was dead lettered.")
        else:
            self._remove(message)

    # Inner moves

    def _enqueue(self, content: Content) -> int:
        now = self._clock.wall()
        message = Message(next(self._numbers), content, now, dict(content.properties))
        self._keep(message)
        if content.scheduled_for is not None and content.scheduled_for > now:
            message.state = State.SCHEDULED
            self._at(content.scheduled_for, message)
        else:
            self._make_active(message)
        return message.number

    def _make_active(self, message: Message) -> None:
        lives = [each for each in (message.content.time_to_live, self.description.time_to_live) if each is not None]
        if message.expires is None and lives and self.dead is not None:
            message.expires = message.enqueued + min(lives)  # a longer one than the queue's own is cut to that
        message.state = State.ACTIVE
        heapq.heappush(self._ready, message.number)
        if message.expires is not None:
            self._at(message.expires, message)

    def _lock(self, message: Message, lock: uuid.UUID | None = None) -> None:
        self._forget_lock(message)
        message.state, message.lock = State.LOCKED, lock or uuid.uuid4()
        message.locked_until = self._clock.wall() + self.description.lock_duration
        self._locks[message.lock] = message
        self._at(message.locked_until, message)

    def _unlock(self, message: Message, *, counts: bool) -> bool:
        """Put a message back, or bury it when it was delivered too often; return whether it is back."""
        self._forget_lock(message)
        message.delivery_count += counts
        limit = self.description.max_delivery_count
        if counts and message.delivery_count >= limit and self.dead is not None:
            why = f"Message could not be consumed after {limit} delivery attempts."
            self._bury(message, "MaxDeliveryCountExceeded", why)
            return False
        if message.is_deferred:
            message.state = State.DEFERRED
        else:
            self._make_active(message)
        return True

    def _bury(self, message: Message, reason: str | None, description: str | None) -> None:
        self._remove(message)
        below = self.dead or self  # a dead letter that is dead-lettered stays where it is
        message.reason, message.description, message.expires = reason, description, None
        message.is_deferred = False
        below.adopt(message)

    def _keep(self, message: Message) -> None:
        self._messages[message.number] = message
        self.size += message.content.size

    def _remove(self, message: Message) -> None:
        self._forget_lock(message)
        del self._messages[message.number]
        self.size -= message.content.size
        message.state = State.GONE

    def _forget_lock(self, message: Message) -> None:
        if message.lock is not None:
            self._locks.pop(message.lock, None)
            message.lock = None
        for lock in [lock for lock, other in self._expired_locks.items() if other is message]:
            del self._expired_locks[lock]

    def _modify(self, message: Message, properties: Mapping[str, Any] | None) -> None:
        message.properties.update(properties or {})

    def _in_state(self, number: int, state: State) -> Message:
        message = self._messages.get(number)
        if message is None or message.state is not state:
            raise MessageMissing(f"There is no {state} message with the sequence number {number}.")
        return message

    def _at(self, when: float, message: Message) -> None:
        heapq.heappush(self._timers, (when, message.number))
        self._on_timer()

    def _notify(self) -> None:
        for listener in list(self.listeners):
            listener()
