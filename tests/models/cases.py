"""What is searched, and what must come of it."""

from typing import Any, Final

from tests.models import lease_model, named_model
from tests.models.copy_model import CopyModel
from tests.models.lease_model import LeaseModel
from tests.models.named_model import NamedModel
from tests.models.search import Case

_LEASE: Final = [
    Case("lease", LeaseModel(lease=7, astray=2), least=1_000_000),
    # In a file of this machine (rule 12): one clock, which no suspend moves, and so no margin for what it may lose.
    Case("lease, by the store's own clock", LeaseModel(lease=7, drift=0, without=frozenset({"2"})), least=100_000),
    Case("lease, three workers", LeaseModel(lease=5, workers=3), least=1_000_000, is_long=True),
    Case(
        "lease, drift 2, three requests astray", LeaseModel(lease=7, drift=2, astray=3), least=5_000_000, is_long=True
    ),
    *(
        Case(
            f"lease without rule {rule}",
            LeaseModel(without=frozenset({rule})),
            breaks="S4" if "settle" in rule else "P1",
        )
        for rule in lease_model.RULES
    ),
]
_TWO: Final = ("a", "a:1")  # the second is what the first one's copy was once named
_AGAIN: Final = ("a", "a")
_COPY: Final = [
    Case("copies", CopyModel(retries=2), least=5_000),
    Case("copies, beside an id that looks like one", CopyModel(ids=_TWO, crashes=0), least=1_000),
    Case("copies, of an id that is pushed again", CopyModel(ids=_AGAIN, crashes=0, forgets=True), least=1_000),
    Case("copies, two crashes forgiven", CopyModel(retries=2, crashes=2), least=50_000, is_long=True),
    Case("copies, three retries", CopyModel(retries=3), least=50_000, is_long=True),
    Case("copies, beside an id that looks like one, with crashes", CopyModel(ids=_TWO), least=200_000, is_long=True),
    Case("copies, fencing numbers", CopyModel(releases=True, crashes=0, tokens=True), least=1_000),
    Case("copies, fencing numbers, with crashes", CopyModel(releases=True, tokens=True), least=200_000, is_long=True),
    # Stated in docs/guarantees.md, not promised: an original runs beside its copy, with budgets of its own.
    Case("copies, starts within the budgets", CopyModel(strict=True), breaks="S7"),
    # Without what makes a copy of a release like one of a requeue.
    Case("copies, released in the same generation, starts", CopyModel(releases=True, raises=False), breaks="S7"),
    Case(
        "copies, released in the same generation, fencing numbers",
        CopyModel(releases=True, raises=False, tokens=True, checks_starts=False),
        breaks="S3",
    ),
    # Without what keeps copies apart.
    Case("copies named by id", CopyModel(naming="task", retries=2), breaks="S1"),
    Case(
        "copies named by id and generation, an id that looks like one",
        CopyModel(naming="generation", ids=_TWO),
        breaks="S1",
    ),
    Case(
        "copies named by id and generation, an id that is pushed again",
        CopyModel(naming="generation", ids=_AGAIN, forgets=True, checks_starts=False),
        breaks="S1",
    ),
    Case("copies without duplicate detection", CopyModel(naming="none"), breaks="S7"),
    Case(
        "copies without duplicate detection, fencing numbers",
        CopyModel(naming="none", tokens=True, checks_starts=False),
        breaks="S3",
    ),
]
_NAMED: Final = [
    Case("named lease", NamedModel(ttl=3, drift=0, versions=1), least=280_000),
    Case("named lease, two cursors", NamedModel(ttl=3, drift=0, tokens=1), least=90_000),
    Case("named lease, clocks that drift, two cursors", NamedModel(), least=1_000_000, is_long=True),
    *(
        Case(
            f"named lease without rule {rule}",
            NamedModel(without=frozenset({rule})),
            breaks=rule.partition(",")[0].replace("2", "S10"),
        )
        for rule in named_model.RULES
    ),
]
CASES: Final[tuple[Case[Any], ...]] = (*_LEASE, *_COPY, *_NAMED)
