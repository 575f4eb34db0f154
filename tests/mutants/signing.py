"""Mutants of signed tasks: each lets something run that was not signed so."""

from typing import Final

from tests.mutants.mutant import Mutant

_TESTS: Final = "tests/unit/test_signing.py::"
_CHECK: Final = "jobq/run/attempt/signature_check.py"

SIGNING: Final = (
    Mutant(
        name="a signature is not checked",
        file=_CHECK,
        text="if found is None and not key.has_signed(",
        wrong="if found is not None and not key.has_signed(",
        test=_TESTS + "test_each_bit_flipped",
    ),
    Mutant(
        name="the queue that was signed for is not looked at",
        file=_CHECK,
        text=" or self._queue not in audience.queues:",
        wrong=":",
        test=_TESTS + "test_audience_and_time",
    ),
    Mutant(
        name="the place that was signed for is not looked at",
        file=_CHECK,
        text="audience.location not in self._locations or ",
        wrong="",
        test=_TESTS + "test_audience_and_time",
    ),
    Mutant(
        name="a signature counts for ever",
        file=_CHECK,
        text="work.not_after is None or work.not_after < now",
        wrong="work.not_after is None",
        test=_TESTS + "test_audience_and_time",
    ),
    Mutant(
        name="what is run need not be what was verified",
        file=_CHECK,
        text=" or task.work.text != verified.work.text:",
        wrong=":",
        test=_TESTS + "test_the_golden_message_is_verified",
    ),
    Mutant(
        name="a key may sign whatever it lists",
        file=_CHECK,
        text="if (why := allowed.by_key(task, verified.key)) is not None:",
        wrong="if (why := allowed.by_key(task, verified.key)) is None and why:",
        test=_TESTS + "test_what_of_a_key_counts",
    ),
    Mutant(
        name="keys that cannot be read are those that were read before",
        file="jobq/signing/keys.py",
        text='            raise ConfigurationError(f"{self._path}: {error.strerror}") from None\n        version',
        wrong="            return self._keys\n        version",
        test=_TESTS + "test_the_file_is_read_again_when_it_changes_and_trusts_nobody_when_it_cannot_be",
    ),
    Mutant(
        name="a revoked key counts",
        file="jobq/signing/keys.py",
        text="if self.revoked is not None:",
        wrong="if self.revoked is not None and self.revoked > now:",
        test="tests/cli/security/test_signed.py::test_a_revoked_key_takes_effect_while_a_worker_runs",
    ),
    Mutant(
        name="a requeue writes the work anew",
        file="jobq/task.py",
        text='{"generation": self.generation + 1, ',
        wrong='{"work": None, "generation": self.generation + 1, ',
        test="tests/cli/security/test_signed.py::test_a_retry_a_dead_letter_and_a_redrive_stay_signed",
    ),
)
