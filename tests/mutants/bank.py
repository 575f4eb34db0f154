"""The mutants: texts of the product replaced by wrong ones, each with the tests that must fail under it.

Each stands for a fault that tests once let pass, or for a line on which a rule of RELIABILITY.md rests. When the text
is gone, `tests/unit/test_mutants.py` fails: a mutant follows the code that it wrongs.
"""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Mutant:
    """One fault.

    Attributes:
        name: what goes wrong, in a few words.
        file: below the project.
        text: stands in the file exactly once.
        wrong: what replaces it.
        test: what must fail, as pytest names it.
    """

    name: str
    file: str
    text: str
    wrong: str
    test: str


BANK: Final[tuple[Mutant, ...]] = (
    Mutant(
        name="SQLite reads the time before it has the lock",
        file="backends/jobq_sqlite/transaction.py",
        text=('    database.execute("BEGIN IMMEDIATE")\n    try:\n        now = file.now_to_write(database)'),
        wrong=(
            "    now = file.now_to_write(database)\n"
            '    database.execute("BEGIN IMMEDIATE")\n'
            "    try:\n"
            "        now = now"
        ),
        test="tests/sqlite/test_group_commit.py::test_a_lease_that_runs_out_while_the_lock_is_waited_for_is_lost",
    ),
    Mutant(
        name="an offer is confirmed by a renewal that is old again",
        file="jobq/lease/keeper.py",
        text="await self._renew_once() and not self._is_stale() and",
        wrong="await self._renew_once() and",
        test="tests/unit/test_keeper.py::test_an_offer_whose_renewal_succeeds_and_is_old_again_by_then_is_let_go",
    ),
    Mutant(
        name="an envelope may record the end of the delivery that begins",
        file="jobq/run/attempt/retry.py",
        text="task.counters.ends > deliveries - 1",
        wrong="task.counters.ends > deliveries",
        test="tests/unit/test_retry.py::test_an_envelope_cannot_record_the_end_of_the_delivery_that_begins",
    ),
    Mutant(
        name="a settle pauses past the end of its lease",
        file="jobq/run/attempt/settle.py",
        text="first_of(end, keeper.lock_lost_event.wait(), *",
        wrong="first_of(end, *",
        test="tests/unit/test_settlement.py::test_a_pause_ends_with_the_lease",
    ),
    Mutant(
        name="what expired keeps its place",
        file="backends/jobq_sqlite/task_sql.py",
        text="PROMOTE_EXPIRED, (now.wall, row[0])",
        wrong="PROMOTE_EXPIRED, (0.0, row[0])",
        test="tests/conformance/test_sqlite.py",
    ),
    Mutant(
        name="the wish to cancel is forgotten by a requeue (SQLite)",
        file="backends/jobq_sqlite/task_sql.py",
        text='CANCEL_IDLE} AND cancel_requested"',
        wrong='CANCEL_IDLE} AND 0"',
        test="tests/journal/test_served.py::test_what_is_canceled_while_it_runs_is_not_put_back",
    ),
    Mutant(
        name="a receive that was answered as it was cancelled gives nothing back (SQLite)",
        file="backends/jobq_sqlite/backend.py",
        text="                give_back(claimed.result())  #",
        wrong="                pass  #",
        test="tests/sqlite/test_group_commit.py::test_receive_cancelled_with_its_answer_in_hand_gives_back",
    ),
    Mutant(
        name="a worker drops what a receive brought as it was cancelled",
        file="jobq/run/worker/receive.py",
        text="return None if not receiving.done() or receiving.cancelled() else receiving.result()",
        wrong="return receiving.result() if receiving.done() and not receiving.cancelling() else None",
        test="tests/unit/test_receiving.py::test_s1_a_receive_that_is_answered_as_it_is_cancelled_hands_its_tasks_over",
    ),
    Mutant(
        name="a repeated claim takes over a lease that is over (SQLite)",
        file="backends/jobq_sqlite/task_sql.py",
        text="AND expires_at > ? AND instr(",
        wrong="AND expires_at > ? - 1e9 AND instr(",
        test="tests/sqlite/test_store.py::test_a_claim_that_is_asked_again_takes_over_no_lease_that_is_over",
    ),
    Mutant(
        name="a repeated claim takes over a lease that is over (PostgreSQL)",
        file="backends/jobq_postgres/claim.py",
        text="task.seq = numbered.seq AND task.expires_at > clock_timestamp()",
        wrong="task.seq = numbered.seq",
        test="tests/postgres/test_late.py::test_a_claim_in_doubt_takes_nothing_that_expired_while_it_waited_for_the_row",
    ),
    Mutant(
        name="a claim in doubt takes again what is over (PostgreSQL)",
        file="backends/jobq_postgres/claim.py",
        text="LIMIT $2 FOR UPDATE) AND expires_at > clock_timestamp()",
        wrong="LIMIT $2 FOR UPDATE)",
        test="tests/postgres/test_late.py::test_a_claim_in_doubt_takes_nothing_that_expired_while_it_waited_for_the_row",
    ),
    Mutant(
        name="strays are killed oldest first",
        file="jobq/run/guardian/tasks.py",
        text="for pid in reversed(self._strays())",
        wrong="for pid in self._strays()",
        test="tests/guardian/test_reaping.py::test_what_tasks_leave_is_killed_whole[newest_first]",
    ),
    Mutant(
        name="a leader is reaped before its group is killed",
        file="jobq/run/guardian/tasks.py",
        text=("            self.signal(leader, signal.SIGKILL)\n        _, status"),
        wrong="        _, status",
        test="tests/guardian/test_reaping.py::test_what_tasks_leave_is_killed_whole[group_before_reap]",
    ),
    Mutant(
        name="the group of a stray lives on",
        file="jobq/run/guardian/kernel.py",
        text="            os.killpg(group, signal.SIGKILL)",
        wrong="            pass",
        test="tests/guardian/test_reaping.py::test_what_tasks_leave_is_killed_whole[group_of_a_stray]",
    ),
    Mutant(
        name="a task waits for strays of its neighbours",
        file="jobq/run/guardian/tasks.py",
        text="if self._killed.get(pid, math.inf) > leader.foreign]",
        wrong="if self._killed.get(pid, math.inf) > 0]",
        test="tests/guardian/test_reaping.py::test_what_tasks_leave_is_killed_whole[strays_of_a_neighbour]",
    ),
    Mutant(
        name="what cannot be killed is never forgotten",
        file="jobq/run/guardian/tasks.py",
        text=("        self._hopeless.discard(pid)\n"),
        wrong="",
        test="tests/guardian/test_reaping.py::test_what_tasks_leave_is_killed_whole[hopeless_until_reaped]",
    ),
    Mutant(
        name="the generator knows no total",
        file="jobq/server/load_generator.py",
        text=("            if wanted.total is not None:\n                count = min(count, wanted.total - pushed)\n"),
        wrong="",
        test="tests/service/test_generator.py",
    ),
    Mutant(
        name="a head may take a minute",
        file="jobq/server/slow_client_limits.py",
        text="HEAD_SECONDS: Final = 10.0",
        wrong="HEAD_SECONDS: Final = 60.0",
        test="tests/service/test_hostile.py::test_others_are_answered_meanwhile",
    ),
    Mutant(
        name="a killer's last attempt has neighbours",
        file="jobq/run/attempt/retry.py",
        text="return crashes > 0 and crashes == task.budgets.crashes",
        wrong="return False",
        test="tests/simulation/test_neighbours.py::test_s11_a_killer_takes_none_of_its_neighbours_with_it",
    ),
    Mutant(
        name="every task that has crashed runs alone",
        file="jobq/run/attempt/retry.py",
        text="return crashes > 0 and crashes == task.budgets.crashes",
        wrong="return crashes > 0",
        test="tests/simulation/test_neighbours.py::test_throughput_where_machines_vanish_each_minute",
    ),
    Mutant(
        name="what waits for room is charged",
        file="jobq/run/attempt/supervisor.py",
        text="Requeue(task.requeued(), neighbours.delay",
        wrong="Requeue(task.requeued(ends=0), neighbours.delay",
        test="tests/simulation/test_neighbours.py::test_s11_a_killer_takes_none_of_its_neighbours_with_it",
    ),
    Mutant(
        name="room is made all the time",
        file="jobq/run/neighbours.py",
        text="if times < PATIENT or now < self._next_turn:",
        wrong="if times < PATIENT:",
        test="tests/simulation/test_neighbours.py::test_room_has_its_share_of_a_workers_time",
    ),
    Mutant(
        name="no room is ever made",
        file="jobq/run/neighbours.py",
        text="if times < PATIENT or now < self._next_turn:",
        wrong="if True:",
        test="tests/simulation/test_neighbours.py::test_l1_room_is_made_in_a_queue_that_is_never_empty",
    ),
    Mutant(
        name="something is taken beside what runs alone",
        file="jobq/run/worker/worker.py",
        text="elif self._alone is not None:",
        wrong="elif False:",
        test="tests/simulation/test_neighbours.py::test_l1_room_is_made_in_a_queue_that_is_never_empty",
    ),
    Mutant(
        name="a worker without its guardian takes more tasks",
        file="jobq/run/spawn/guardian_spawner.py",
        text="            self.lost.set()",
        wrong="            pass",
        test="tests/process/test_neighbours.py::test_s11_a_worker_whose_guardian_is_gone_takes_nothing_more",
    ),
    Mutant(
        name="a start that is given up frees its slot at once",
        file="jobq/run/spawn/guardian_spawner.py",
        text="await asyncio.wait({process.ended}, timeout=ENDING_SECONDS)",
        wrong="pass",
        test="tests/timing/test_lifetime.py::test_s11_a_start_that_was_given_up_has_ended_when_its_slot_is_free",
    ),
    Mutant(
        name="of a copy on Service Bus the journal hears only when its original is gone",
        file="backends/jobq_azure/service_bus/delivery.py",
        text="            on_sent()",
        wrong="            pass",
        test="tests/sb/test_journal.py::test_what_is_back_before_its_copy_is_due_is_not_run",
    ),
    Mutant(
        name="what could not be buried starts again",
        file="jobq/run/attempt/retry.py",
        text="    if _is_given_up(task):",
        wrong="    if False:",
        test="tests/unit/test_retry.py::test_what_is_given_up_never_starts_again_though_nobody_can_bury_it",
    ),
    Mutant(
        name="a missing dead-letter place is not made when it is needed",
        file="backends/jobq_azure/storage/dead_letters.py",
        text="            except AccessDenied:\n                raise missing from None",
        wrong="            finally:\n                raise missing from None",
        test="tests/azure/test_missing_place.py::test_it_is_made_when_it_is_needed",
    ),
    Mutant(
        name="the first page of dead letters over HTTP is all",
        file="backends/jobq_http/backend.py",
        text='return _letters(answer), answer.get("next")',
        wrong="return _letters(answer), None",
        test="tests/service/test_journal.py::test_more_dead_letters_than_one_answer_holds",
    ),
    Mutant(
        name="dead letters that stood in the way stay locked",
        file="backends/jobq_azure/service_bus/dead_letters.py",
        text="await self._let_go(walk.held())",
        wrong="await self._let_go([])",
        test="tests/sb/test_many_dead_letters.py::test_the_last_is_reached_under_a_short_lock_and_the_others_are_let_go",
    ),
    Mutant(
        name="who leaves without a guardian does not wait for the kill",
        file="jobq/run/spawn/guardian_handle.py",
        text="await finished(self._lifeline.join)",
        wrong="pass",
        test="tests/guardian/test_trees.py::test_p2_who_leaves_when_the_guardian_was_killed_leaves_nothing_behind",
    ),
    Mutant(
        name="one dead guard is taken for the death of all three",
        file="jobq/run/spawn/dead_workers.py",
        text="len(ended) > 1 and all(ended)",
        wrong="len(ended) > 1 and any(ended)",
        test="tests/containment/test_dead_workers.py::test_l6_only_a_worker_of_which_surely_nothing_lives_is_taken_for_dead",
    ),
    Mutant(
        name="a worker of which something lives on is taken for dead",
        file="jobq/run/spawn/dead_workers.py",
        text="if worker_id not in carried",
        wrong="if worker_id",
        test="tests/containment/test_dead_workers.py::test_l6_only_a_worker_of_which_surely_nothing_lives_is_taken_for_dead",
    ),
    Mutant(
        name="leases are ended of who may have left what no look finds",
        file="jobq/run/spawn/guardian_spawner.py",
        text='return "" if self.contained_by == containment.NONE else holder_of(self.worker_id)',
        wrong="return holder_of(self.worker_id)",
        test="tests/containment/test_leases_of_the_dead.py::test_s3_what_may_live_on_keeps_its_lease",
    ),
    Mutant(
        name="who sees other mounts judges whether something is left",
        file="jobq/run/spawn/dead_workers.py",
        text="if holder_of(worker_id) == each and",
        wrong="if worker_id != each and",
        test="tests/containment/test_dead_workers.py::test_s3_who_sees_other_mounts_cannot_tell_that_nothing_is_left",
    ),
    Mutant(
        name="the mark of a former lease counts for the one that an older jobq took",
        file="backends/jobq_sqlite/task_sql.py",
        text="AND expires_at > ? AND worker = receipt || ' ' || ?",
        wrong="AND expires_at > ? AND worker LIKE '%' || ' ' || ?",
        test="tests/sqlite/test_store.py::test_s3_a_lease_that_an_older_jobq_took_is_not_the_dead_workers",
    ),
    Mutant(
        name="who may settle may change what runs",
        file="jobq/server/tasks.py",
        text="return task.model_copy(update=raised).encode()",
        wrong="return told.encode()",
        test="tests/service/test_api.py::test_a_requeue_raises_counts_and_changes_nothing_else",
    ),
    Mutant(
        name="a page of dead letters has any number of bytes",
        file="backends/jobq_sqlite/queue_admin.py",
        text="if len(letters) == limit or size >= PAGE_BYTES:",
        wrong="if len(letters) == limit:",
        test="tests/service/test_journal.py::test_an_answer_has_so_many_bytes_at_most",
    ),
    Mutant(
        name="dead letters that another reader holds are missing",
        file="backends/jobq_azure/storage/dead_letters.py",
        text="hidden = await self._hidden(held)",
        wrong="hidden = 0",
        test="tests/azure/test_dead_letters.py::test_letters_that_another_reader_holds_are_not_said_to_be_missing",
    ),
    Mutant(
        name="one scheduled task that became due keeps a queue from being cleared",
        file="backends/jobq_azure/service_bus/clear_queue.py",
        text="if half else 0",
        wrong="if half > 1 else 0",
        test="tests/sb/test_clearing.py::test_what_becomes_due_meanwhile_is_deleted_with_what_waits",
    ),
    Mutant(
        name="retry --all ends with the first batch that holds a letter which stays",
        file="jobq/cli/commands/dead.py",
        text="goes_on = isinstance(error, MalformedTask) or (",
        wrong="goes_on = False and (",
        test="tests/sb/test_many_dead_letters.py::test_retry_all_goes_on_past_what_stays_as_it_is",
    ),
    Mutant(
        name="a task that goes on elsewhere is taken for one of another queue",
        file="jobq/task.py",
        text='life = _digest(f"{origin} {self.epoch}',
        wrong='life = _digest(f"{self.epoch}',
        test="tests/journal/test_sending_on.py::test_each_life_of_each_task_has_a_name_of_its_own",
    ),
    Mutant(
        name="a later task of an id removes the files of an earlier one",
        file="jobq/run/attempt/checkpoints.py",
        text="if whose == life else None",
        wrong="if whose else None",
        test="tests/journal/test_checkpoint_files.py::test_tasks_of_one_id_keep_their_files_apart",
    ),
    Mutant(
        name="who pushes an id again hears of the former task",
        file="backends/jobq_azure/table_journal/reader.py",
        text="if known is not None and self._is_former(id_, _born_in(row)):",
        wrong="if False:",
        test="tests/azure/test_journal_table.py::test_who_pushes_an_id_again_hears_nothing_of_the_former_task",
    ),
    Mutant(
        name="whose an outcome is, is guessed by when it ended",
        file="backends/jobq_azure/table_journal/reader.py",
        text='return float(row.get("Born") or latest)',
        wrong="return latest",
        test="tests/azure/test_journal_table.py::test_whose_an_outcome_is_is_known_an_hour_later",
    ),
    Mutant(
        name="what was purged before an answer was lost is not told",
        file="backends/jobq_azure/common/errors.py",
        text="error.done = self.done",
        wrong="error.done = ()",
        test="tests/sb/test_many_dead_letters.py::test_what_was_purged_before_an_answer_was_lost_is_told",
    ),
    Mutant(
        name="an answer that is too large is asked for again and again",
        file="backends/jobq_http/backend.py",
        text="self._most = max(1, max_tasks // 2)",
        wrong="pass",
        test="tests/service/test_lost_answers.py::test_an_answer_that_is_too_large_to_arrive_is_asked_for_in_parts",
    ),
    Mutant(
        name="a clock that is set back empties a task",
        file="jobq/server/tasks.py",
        text='return b"" if record is None or record.body is None else record.body',
        wrong='return b""',
        test="tests/service/test_settle_races.py::test_no_body_is_lost_to_a_clock",
    ),
    Mutant(
        name="an older version's checkpoint files stay for ever",
        file="jobq/run/attempt/checkpoints.py",
        text="(self._fencing, 0) if name == former else ",
        wrong="",
        test="tests/journal/test_checkpoint_files.py::test_files_that_an_older_version_has_saved_are_found_and_removed",
    ),
)
