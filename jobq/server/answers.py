"""The answers of the API as models, from which its OpenAPI is made: fields may be added to them."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field


class Answer(BaseModel):
    """An answer: fields may be added to it."""

    model_config = ConfigDict(extra="allow")


class ErrorBody(Answer):
    """What was wrong, in one word for programs and a sentence for people."""

    code: str
    message: str


class Problem(Answer):
    """An error."""

    error: ErrorBody


class Accepted(Answer):
    """It is done, and stays so."""

    accepted: bool = True


class Kept(Accepted):
    """The lease is renewed."""

    cancel: Annotated[bool, Field(description="Somebody wants the task to end: stop it, and settle.")] = False


class PushAnswer(Answer):
    """The tasks' ids, in order."""

    ids: list[str]


class LeasedTask(Answer):
    """A task under a lease, which began before the answer was sent: count it from before the request."""

    id: str
    receipt: Annotated[str, Field(description="For all that follows; keep it secret.")]
    lease_seconds: float
    deliveries: int
    fencing: Annotated[
        str | None,
        Field(
            description="Rises with each delivery of this task: for others to refuse a lower. Not where raw was asked."
        ),
    ] = None
    checkpoint: str | None = None
    task: Annotated[dict[str, Any] | None, Field(description="None = these bytes are no task; see body.")] = None
    body: Annotated[str | None, Field(description="As stored, where raw was asked for or it is no task.")] = None
    body_base64: Annotated[str | None, Field(description="Instead of body where that is not UTF-8.")] = None


class PauseMark(Answer):
    """Since when, by whom and why nothing is handed out."""

    at: float
    by: str
    reason: str


class ClaimAnswer(Answer):
    """What was claimed; empty when nothing was there, or is handed out: then it is said since when, and why."""

    tasks: list[LeasedTask]
    paused: PauseMark | None = None


class SettleAnswer(Answer):
    """How one settle was answered."""

    status: Annotated[int, Field(description="As it would have been alone.")]
    error: ErrorBody | None = None


class SettleAnswers(Answer):
    """The answers, in order."""

    answers: list[SettleAnswer]


class TaskShown(Answer):
    """A task as it stands. Times are the server's, in seconds since 1970; the values of variables are never shown."""

    id: str
    state: Annotated[str, Field(description="ready, scheduled, leased, done or dead")]
    deliveries: int | None = None
    created: float | None = None
    due: float | None = None
    started: float | None = None
    last_heartbeat_at: float | None = None
    must_heartbeat_before: float | None = None
    processed: float | None = None
    output: str | None = None
    exit_code: int | None = None
    value: Any = None
    duration_seconds: float | None = None
    reason: str | None = None
    description: str | None = None
    task: dict[str, Any] | None = None


class TaskPage(Answer):
    """A page of tasks."""

    tasks: list[TaskShown]
    next: Annotated[str | None, Field(description="What `after` is for the next page; None = this is the last.")] = None


class LeaseGranted(Answer):
    """The name is yours."""

    resource: str
    token: int
    key: str
    cursor: str | None
    version: int


class LeaseShown(Answer):
    """A lease as it stands; times as in TaskShown."""

    id: str
    resource: str
    holder: str
    state: str
    token: int
    ttl: float | None = None
    created: float
    renewed: float | None = None
    released: float | None = None
    expires: float | None = None
    remaining: float | None = None
    renewals: int | None = None
    revoked: bool = False
    cursor: str | None = None
    confirmation: str | None = None


class LeasePage(Answer):
    """A page of leases."""

    leases: list[LeaseShown]
    next: str | None = None


class ConfirmAnswer(Answer):
    """What was confirmed."""

    token: int
    value: str


class QueueCounts(Answer):
    """How many tasks are where."""

    visible: int | None
    leased: int | None
    scheduled: int | None
    dead: int | None
    paused: Annotated[PauseMark | None, Field(description="Why none is handed out now; null = they are.")]


class ShapeCount(Answer):
    """How many tasks wait that ask for the same of a worker."""

    count: int
    resources: Annotated[
        dict[str, int] | None, Field(description="cpus and gpus in thousandths, mem in bytes; null = none.")
    ]
    needs: Annotated[list[str] | None, Field(description="Tags that a worker must have, all of them; null = none.")]


class WaitingShapes(Answer):
    """What waits, by what it asks for; without what is scheduled, paused or leased."""

    shapes: list[ShapeCount]


class PauseAnswer(Answer):
    """The mark that was set, or taken away."""

    paused: PauseMark | None


class BatchRound(Answer):
    """A round of a batch that has finished."""

    number: int
    finished: float
    counts: dict[str, int]


class BatchShown(Answer):
    """A batch as it stands; times as in TaskShown.

    A token that may not look is not told its template and rounds, and of the counts only where it may operate.
    """

    name: str
    state: Annotated[str, Field(description="open, sealed or finished")]
    round: int
    is_canceled: bool
    template: str = ""
    created: float
    sealed: float | None = None
    finished: float | None = None
    counts: Annotated[dict[str, int], Field(description="Of its tasks, by where they are; empty = not told.")] = {}
    total: Annotated[int | None, Field(description="How many were pushed to it.")] = None
    rounds: Annotated[list[BatchRound], Field(description="Those that have finished, oldest first.")] = []
    rate: Annotated[
        float | None,
        Field(description="How many of its tasks ended in a second, of late; null = not known, or a list."),
    ] = None


class BatchPage(Answer):
    """A page of batches."""

    batches: list[BatchShown]
    next: str | None = None


class BatchMember(Answer):
    """A task of a batch, with what it was pushed with for a table of results."""

    id: str
    state: str
    params: dict[str, str | int | float]


class BatchMembers(Answer):
    """A page of them."""

    tasks: list[BatchMember]
    next: str | None = None


class ClearAnswer(Answer):
    """How many were deleted; `cursor` for the next request, if that was not all."""

    cleared: int
    cursor: str | None = None


class FoundIds(Answer):
    """Those that were there."""

    ids: list[str]


class RawTask(Answer):
    """A task that waits, or is dead, with its bytes as stored; for jobq's own client."""

    id: str
    deliveries: int
    body: str | None = None
    body_base64: str | None = None
    reason: str | None = None
    description: str | None = None
    died: float | None = None
    batch: Annotated[str | None, Field(description="Of a dead letter: the batch that it is of.")] = None


class RawPage(Answer):
    """A page of them."""

    tasks: list[RawTask]
    next: Annotated[str | None, Field(description="What `after` is for the next page; None = this is the last.")] = None


class JournalRecord(Answer):
    """Where a task is, as `jobq status` shows it; for jobq's own client."""

    id: str
    state: str
    attempt: int
    batch: Annotated[str | None, Field(description="The name of the batch that it is of.")] = None


class JournalRecords(Answer):
    """Several."""

    records: list[JournalRecord]


class JournalMatches(Answer):
    """Ids in which a part stands, as many as were asked for."""

    ids: list[str]


class JournalAttempt(Answer):
    """An attempt that has ended, as `jobq status` shows it."""

    outcome: str
    then: str
    ended: float


class JournalAttempts(Answer):
    """Several, in order."""

    attempts: list[JournalAttempt]


class JournalOutput(Answer):
    """The end of what an attempt has printed; null where none is kept."""

    attempt: int | None
    output: str | None


class JournalCounts(Answer):
    """Counts of a journal, as `jobq stats` shows them."""

    states: dict[str, int]
    oldest_ready_seconds: float | None
    ended: dict[str, int]
    window_seconds: float
    first_ended_seconds: float | None


class JournalCanceled(Answer):
    """What became of each request, in order: canceled, stopping, ended or unknown."""

    canceled: list[str]


class HastenAnswer(Answer):
    """What became of each task, in order: due, waiting, running, ended or unknown."""

    hastened: list[str]


class QueueNames(Answer):
    """All queues of the place that is served, as far as the token may see them."""

    queues: list[str]


class QueueMade(Answer):
    """A queue that is there."""

    queue: str


class Generator(Answer):
    """The load generator of a queue, as every replica answers."""

    desired: Annotated[str, Field(description="running or stopped: what was asked for last")]
    state: Annotated[str, Field(description="running, starting, stopping or stopped")]
    runner: Annotated[str | None, Field(description="The replica that runs it, by the named lease.")] = None
    rate: float | None = None
    command: str | None = None
    total: int | None = None
    min_seconds: float = 0.0
    max_seconds: float | None = None
    pushed: Annotated[int, Field(description="Tasks that this run has added, certainly.")] = 0
    run: Annotated[int, Field(description="QueueCounts the starts.")] = 0


class TokenShown(Answer):
    """What a token permits."""

    id: Annotated[str, Field(description="Names it in the audit; - = no token is needed here.")]
    name: str
    scopes: list[str]
    queues: Annotated[list[str], Field(description="* = all.")]


class HealthAnswer(Answer):
    """Whether it works."""

    status: str
