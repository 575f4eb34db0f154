"""`jobq run --halt WHEN,WHY=VALUE`: when a run ends before all of its jobs have run, as GNU parallel has it."""

import re
from dataclasses import dataclass
from typing import Final, Literal

_FORM: Final = re.compile(r"(soon|now),(fail|success|done)=([0-9]{1,9})")
FORMS: Final = "never; soon or now, with fail=N, success=N or done=N, as in now,fail=1"


@dataclass(frozen=True)
class Halt:
    """A condition.

    Attributes:
        when: soon = what runs is let end; now = it is ended.
        why: what is counted.
        value: how many.
    """

    when: Literal["soon", "now"]
    why: Literal["fail", "success", "done"]
    value: int

    @classmethod
    def of(cls, text: str) -> "Halt | None":
        """Return what a text means, None for never; raises ValueError."""
        if text == "never":
            return None
        match = _FORM.fullmatch(text)
        if match is None or int(match[3]) < 1:
            raise ValueError(f"{text!r} is none of: {FORMS}")
        when, why = match[1], match[2]
        return cls(when, why, int(match[3]))  # type: ignore[arg-type]  # the pattern has no others

    def is_reached(self, done: int, failed: int) -> bool:
        """Return whether it holds.

        Args:
            done: jobs that succeeded.
            failed: jobs that failed.
        """
        return {"fail": failed, "success": done, "done": done + failed}[self.why] >= self.value

    def __str__(self) -> str:
        """Return it as it was given."""
        return f"--halt {self.when},{self.why}={self.value}"
