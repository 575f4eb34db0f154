"""What a task's exit rules say of one end; the rules themselves are `jobq.formats.exit_rules`."""

import signal

from jobq.formats.exit_rules import Action, parse
from jobq.task import Outcome, OutcomeKind, Task


def action_for(task: Task, outcome: Outcome) -> Action | None:
    """Return what the task's rules say of this end; None = nothing."""
    if not task.on_exit or outcome.kind not in {OutcomeKind.FAILED, OutcomeKind.TIMED_OUT, OutcomeKind.CRASHED}:
        return None
    if outcome.kind is OutcomeKind.TIMED_OUT:
        facts = {"timeout"}
    else:
        facts = {"oom"} if outcome.out_of_memory or outcome.over_memory_limit else set()
        facts |= set() if outcome.exit_code is None else {str(outcome.exit_code)}
        facts |= set() if outcome.signal is None else {_signal_name(outcome.signal)}
    return next((action for when, action in map(parse, task.on_exit) if when in facts), None)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal: a number alone would be an exit code
        return f"SIG{number}"
