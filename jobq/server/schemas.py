"""The requests of the API as models, from which its OpenAPI is made; `answers.py` has the answers.

Version 1. Fields may be added to answers; anything else is a new version (`Jobq-Service`, in every answer).
"""

from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)

from jobq.backend import MOST_CHECKPOINTS
from jobq.batch_plan import MOST_TEMPLATE_CHARACTERS, MOST_THEN
from jobq.formats import durations, strict_json
from jobq.formats.checkpoint_format import StoredCheckpoint
from jobq.journal.records import (
    MAX_BEAT_OUTPUT_BYTES,
    MAX_DETAIL_CHARACTERS,
    MAX_OUTPUT_BYTES,
    MAX_TEXT_CHARACTERS,
)
from jobq.journal.store import MOST_IDS
from jobq.pausing import MOST_CHARACTERS
from jobq.resources.request import TAG
from jobq.resources.room import MOST_AMOUNT, MOST_TAGS
from jobq.task_client import checked_checkpoint

API_VERSION: Final = "1"
SERVICE_HEADER: Final = "Jobq-Service"  # without it an answer is not this service's: a proxy's, or a stranger's
CAPABILITIES_HEADER: Final = "Jobq-Capabilities"  # what this service can that others cannot, in words: selects
MAX_TASKS: Final = 10_000
MAX_CLAIM: Final = 100
MAX_SETTLES: Final = 500
MAX_PAGE: Final = 1_000
MAX_WAIT_SECONDS: Final = 30.0
MAX_LEASE_SECONDS: Final = 7 * 86400.0
MAX_DELAY_SECONDS: Final = (
    durations.LONGEST_SECONDS
)  # a rule may say delay: so long; a step of a clock adds up to 60 years
MAX_TEXT: Final = 64 * 1024
MAX_MARK: Final = 1024  # what names the files of a checkpoint, beside its value
MAX_OUTPUT: Final = 256 * 1024
MAX_FIGURE: Final = 2**53  # what every reader of JSON takes
MAX_TOKEN: Final = 2**63 - 1
MAX_VALUES: Final = 1_000_000  # of a request: ten thousand tasks with a hundred each, or two of the largest
MANY_VALUES: Final = 100_000  # as many take longer, and more memory, than their bytes say
MOST_FIELDS: Final = 100  # of one object that is to be a request: each that is unknown costs an error
MAX_DEPTH: Final = strict_json.MAX_DEPTH + 2  # of a request: a task stands within {"tasks": [...]}


def _whole(value: Any) -> Any:
    """Return 3 for 3.0, which is the same number in JSON."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _startable(stored: str) -> str:
    """Return a checkpoint that the next attempt can be given; `MAX_MARK` bounds the name of its files."""
    checkpoint = StoredCheckpoint.decode(stored)
    if len(checkpoint.archive or "") > MAX_MARK:
        raise ValueError(f"the name of its files has more than {MAX_MARK} characters")
    if checkpoint.value is not None:
        checked_checkpoint(checkpoint.value)
    return stored


# Values of any shape are `Any`: they are JSON already (`strict_json`), and to look at each again takes seconds.
Seconds = Annotated[float, Field(ge=0, le=MAX_DELAY_SECONDS, allow_inf_nan=False)]
LeaseSeconds = Annotated[float, Field(ge=1, le=MAX_LEASE_SECONDS, allow_inf_nan=False)]
Key = Annotated[str, Field(min_length=16, max_length=100, pattern=r"^[A-Za-z0-9._:@+=-]+$")]
Receipt = Annotated[str, Field(min_length=1, max_length=100)]
Text = Annotated[str, Field(max_length=MAX_TEXT)]
Shown = Annotated[str, Field(pattern=r"^[^\x00]*$")]  # what PostgreSQL takes as text
RESOURCE: Final = {"type": "string", "pattern": r"^[A-Za-z0-9]([A-Za-z0-9._:-]{0,126}[A-Za-z0-9])?$", "maxLength": 128}
Resource = Annotated[str, Field(pattern=RESOURCE["pattern"], max_length=RESOURCE["maxLength"])]
Id = Annotated[Shown, Field(min_length=1, max_length=200)]
WHOLE: Final = BeforeValidator(_whole)  # last of all: else the bounds are not in the OpenAPI
Token = Annotated[int, Field(ge=1, le=MAX_TOKEN), WHOLE]
Amount = Annotated[int, Field(ge=0, le=MOST_AMOUNT), WHOLE]
Tag = Annotated[str, Field(pattern=f"^{TAG.pattern}$")]


class Body(BaseModel):
    """A request: nothing unknown in it."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _has_few_fields(cls, value: Any) -> Any:
        if isinstance(value, dict) and len(value) > MOST_FIELDS:
            raise ValueError(f"more than {MOST_FIELDS} fields")
        return value


class NewTasks(Body):
    """Tasks to add: all of them or, on an error, none."""

    tasks: Annotated[
        list[dict[str, Any]],
        Field(
            min_length=1,
            max_length=MAX_TASKS,
            description="Fields of jobq's tasks: one of command, argv and call (with kwargs); env, cwd, timeout, id,"
            " priority, not_before, budgets; batch (its name) and params (texts and numbers to show with what comes of"
            " it). A task with an id is added once, however often it is sent.",
        ),
    ]
    key: Annotated[Key | None, Field(description="Names tasks without an id: the same call again adds nothing.")] = None


class SpaceBody(Body):
    """A part of a machine, or all that is offered of it."""

    cpus: Annotated[Amount, Field(description="Processors, in thousandths.")] = 0
    mem: Annotated[Amount, Field(description="Bytes of memory.")] = 0
    gpus: Annotated[Amount, Field(description="Whole GPUs, in thousandths.")] = 0
    parts: Annotated[Amount, Field(description="Parts of GPUs (MIG), in thousandths; a task gets one.")] = 0


class RoomBody(Body):
    """What one worker can start now."""

    free: SpaceBody = SpaceBody()
    total: Annotated[SpaceBody, Field(description="What there is when nothing runs.")] = SpaceBody()
    tags: Annotated[list[Tag], Field(max_length=MOST_TAGS, description="Of the worker.")] = []
    counts_slots: Annotated[bool, Field(description="A task that asks for no processor takes one.")] = False
    reserves_after: Annotated[
        Seconds | None,
        Field(
            description="Seconds for which a task must have been overtaken before it is handed out though it fits"
            " total alone. None = it is not."
        ),
    ] = None


class ClaimRequest(Body):
    """A request for tasks."""

    max_tasks: Annotated[int, Field(ge=1, le=MAX_CLAIM), WHOLE] = 1
    lease_seconds: Annotated[LeaseSeconds | None, Field(description="None = the backend's default, 60 s.")] = None
    wait_seconds: Annotated[float, Field(ge=0, le=MAX_WAIT_SECONDS, description="Stay for a first task.")] = 0.0
    key: Annotated[Key | None, Field(description="Made for this call alone, random; needed to ask again.")] = None
    former: Annotated[
        list[Key],
        Field(max_length=16, description="Keys of claims whose answers were lost: what they hold comes first."),
    ] = []
    raw: Annotated[bool, Field(description="Give bodies as they are stored instead of tasks.")] = False
    room: Annotated[
        RoomBody | None,
        Field(
            description="Give tasks that fit alone, where Jobq-Capabilities says selects, and fit together. None = all."
        ),
    ] = None


class BeatBody(Body):
    """How a running attempt is, for those who look on; all by its own word."""

    running_seconds: Annotated[Seconds | None, Field(description="For how long it has run.")] = None
    progress: Annotated[float | None, Field(ge=0, le=1)] = None
    text: Annotated[str, Field(max_length=MAX_TEXT_CHARACTERS)] = ""
    cpu_seconds: Annotated[float | None, Field(ge=0, le=MAX_FIGURE)] = None
    cores: Annotated[float | None, Field(ge=0, le=MAX_FIGURE)] = None
    rss_bytes: Annotated[int | None, Field(ge=0, le=MAX_FIGURE), WHOLE] = None
    processes: Annotated[int | None, Field(ge=0, le=2**31 - 1), WHOLE] = None
    output: Annotated[str, Field(max_length=MAX_BEAT_OUTPUT_BYTES, description="The end of what it has printed.")] = ""


class RenewRequest(Body):
    """A renewal."""

    receipt: Receipt
    lease_seconds: LeaseSeconds | None = None
    told: BeatBody | None = None


class UsageBody(Body):
    """What an attempt's processes used."""

    cpu_seconds: Annotated[float | None, Field(ge=0, le=MAX_FIGURE)] = None
    max_rss_bytes: Annotated[int | None, Field(ge=0, le=MAX_FIGURE), WHOLE] = None
    processes: Annotated[int, Field(ge=0, le=2**31 - 1), WHOLE] = 1


class AttemptBody(Body):
    """What an attempt came to, for the journal, by the word of the worker."""

    outcome: Annotated[Shown, Field(min_length=1, max_length=40, description="Such as succeeded, failed, canceled.")]
    then: Annotated[
        Literal["done", "retry", "dead", "canceled"],
        Field(description="What becomes of the task: done and canceled go with complete."),
    ]
    running_seconds: Annotated[Seconds | None, Field(description="How long it ran; None = it never did.")] = None
    waited_seconds: Annotated[
        Seconds | None, Field(description="From when the task could start to when it did; None = not known.")
    ] = None
    host: Annotated[Shown, Field(max_length=255)] = ""
    pid: Annotated[int, Field(ge=0, le=2**31 - 1), WHOLE] = 0
    detail: Annotated[str, Field(max_length=MAX_DETAIL_CHARACTERS)] = ""
    exit_code: Annotated[int | None, Field(ge=-(2**31), le=2**31 - 1), WHOLE] = None
    signal: Annotated[int | None, Field(ge=0, le=1000), WHOLE] = None
    usage: UsageBody | None = None
    value: Any = None
    program: Annotated[str, Field(max_length=100)] = ""
    output: Annotated[str, Field(max_length=MAX_OUTPUT_BYTES)] = ""


class CompleteRequest(Body):
    """The task is done."""

    receipt: Receipt
    exit_code: Annotated[int | None, Field(ge=-(2**31), le=2**31 - 1), WHOLE] = None
    value: Any = None
    duration_seconds: Seconds = 0.0
    output: Annotated[str, Field(max_length=MAX_OUTPUT)] = ""
    attempt: AttemptBody | None = None


class FailRequest(Body):
    """The attempt failed: the service counts it, and tries again or gives the task up, by the task's budgets."""

    receipt: Receipt
    detail: Annotated[str, Field(max_length=MAX_TEXT, description="What happened, for people.")] = ""
    output: Annotated[str, Field(max_length=MAX_OUTPUT)] = ""
    duration_seconds: Seconds = 0.0
    exit_code: Annotated[int | None, Field(ge=-(2**31), le=2**31 - 1), WHOLE] = None


class ReleaseRequest(Body):
    """The task was never started."""

    receipt: Receipt
    delay_seconds: Annotated[Seconds, Field(description="Until it is to be had again.")] = 0.0
    misfits: Annotated[
        int, Field(ge=0, le=1, description="Raises the task's count of workers that could never run it."), WHOLE
    ] = 0


class CountersBody(Body):
    """How a task's attempts have ended so far, by the word of the worker."""

    failures: Annotated[int, Field(ge=0, le=2**31 - 1), WHOLE] = 0
    preemptions: Annotated[int, Field(ge=0, le=2**31 - 1), WHOLE] = 0
    ends: Annotated[int, Field(ge=0, le=2**31 - 1), WHOLE] = 0
    misfits: Annotated[int, Field(ge=0, le=2**31 - 1), WHOLE] = 0


class RequeueRequest(Body):
    """Put it back, by a caller who counts by itself."""

    receipt: Receipt
    counters: Annotated[CountersBody, Field(description="The task's, raised by this end; none is ever lowered.")]
    delay_seconds: Seconds = 0.0
    attempt: AttemptBody | None = None


class DeadLetterRequest(Body):
    """Give it up, by a caller who counts by itself."""

    receipt: Receipt
    reason: Annotated[Shown, Field(min_length=1, max_length=100)]
    description: Annotated[str, Field(max_length=MAX_OUTPUT)] = ""
    attempt: AttemptBody | None = None


class CheckpointRequest(Body):
    """How far the task has come."""

    receipt: Receipt
    value: Annotated[
        Shown,
        Field(max_length=MAX_TEXT + MAX_MARK, description="Of a task: 64 KiB of UTF-8 at most."),
        AfterValidator(_startable),
    ]
    number: Annotated[
        int,
        Field(
            ge=0, le=MOST_CHECKPOINTS, description="Rises within the attempt: a lower one than was saved is refused."
        ),
        WHOLE,
    ] = 0


class _Item(Body):
    id: Id


class CompleteItem(_Item, CompleteRequest):
    """Complete this one."""

    verb: Literal["complete"]


class FailItem(_Item, FailRequest):
    """This one has failed."""

    verb: Literal["fail"]


class ReleaseItem(_Item, ReleaseRequest):
    """Release this one."""

    verb: Literal["release"]


class RequeueItem(_Item, RequeueRequest):
    """Requeue this one."""

    verb: Literal["requeue"]


class DeadLetterItem(_Item, DeadLetterRequest):
    """Give this one up."""

    verb: Literal["dead-letter"]


@dataclass(frozen=True)
class MalformedItem:
    """One of several that is malformed, and why; the others are as good as without it."""

    error: ValidationError


def _one_of_several(item: Any, read: ValidatorFunctionWrapHandler) -> Any:
    try:
        return read(item)
    except ValidationError as error:
        return MalformedItem(error)


SettleOf = Annotated[CompleteItem | FailItem | ReleaseItem | RequeueItem | DeadLetterItem, Field(discriminator="verb")]


class SettleRequest(Body):
    """Several settles; each is answered by itself."""

    settles: Annotated[
        list[Annotated[SettleOf, WrapValidator(_one_of_several)]], Field(min_length=1, max_length=MAX_SETTLES)
    ]


class Ids(Body):
    """Which tasks, or dead letters."""

    ids: Annotated[list[Id], Field(max_length=MAX_TASKS)]


class QueuePause(Body):
    """Why nothing is to be handed out."""

    by: Annotated[Shown, Field(max_length=MOST_CHARACTERS, description="For display only.")]
    reason: Annotated[Shown, Field(max_length=MOST_CHARACTERS)] = ""


class BatchPlan(Body):
    """What who begins a batch says of it; `jobq.batch_plan.Plan.checked` has the bounds."""

    template: Annotated[
        Shown, Field(max_length=MOST_TEMPLATE_CHARACTERS, description="What its tasks run, for people.")
    ] = ""
    then: Annotated[
        list[str],
        Field(
            max_length=MOST_THEN,
            description="Tasks, each as the JSON of one with its version, that are added when a round has finished.",
        ),
    ] = []


class NewLease(Body):
    """A request for a name."""

    resource: Resource
    holder: Annotated[Shown, Field(max_length=1000, description="For display only.")] = ""
    ttl: LeaseSeconds = 60.0
    key: Annotated[Key | None, Field(description="For this request alone: the same again is answered alike.")] = None


class LeaseToken(Body):
    """A lease that is held."""

    resource: Resource
    token: Token


class Renewal(LeaseToken):
    """A renewal of a lease."""

    ttl: LeaseSeconds = 60.0


class CursorRequest(LeaseToken):
    """How far the work under a lease has come."""

    cursor: Text
    version: Annotated[int, Field(ge=1, le=MAX_TOKEN), WHOLE]


class ConfirmRequest(LeaseToken):
    """A name taken for good."""

    value: Text = ""


class Withdrawal(Body):
    """A request that nobody waits for any more."""

    resource: Resource
    key: Key


class LeaseByName(Body):
    """A lease by its name alone."""

    resource: Resource


class GeneratorStart(Body):
    """What the generator is to add."""

    rate: Annotated[float, Field(gt=0, le=10_000, description="Tasks a second.")] = 1.0
    command: Annotated[str, Field(min_length=1, max_length=MAX_TEXT, description="{seconds} is a length.")] = "true"
    total: Annotated[int | None, Field(ge=1, le=10**9, description="Stop after so many; None = never."), WHOLE] = None
    min_seconds: Annotated[float, Field(ge=0, le=86_400, description="The shortest length.")] = 0.0
    max_seconds: Annotated[
        float | None,
        Field(ge=0, le=86_400, description="The longest: each task's is random. The command is sleep {seconds} then."),
    ] = None


class JournalIds(Body):
    """Which tasks."""

    ids: Annotated[list[Id], Field(max_length=MOST_IDS)]
