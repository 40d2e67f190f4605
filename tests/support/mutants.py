"""The product with one thing wrong, each of which a test of ``make test`` has to notice.

``python -m tests.support.mutants`` changes a copy of the project, one mutation after the other, and runs the test that
is named: it has to fail. A part of a mutation's name as argument runs those only.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

PROJECT = Path(__file__).parents[2]
PACKAGE = "airflow_provider_backpressure"
SECONDS = 600


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """One thing that is wrong. ``right`` stands once in ``module``, and becomes ``wrong``."""

    name: str
    module: str
    right: str
    wrong: str
    test: str
    """Which test notices it, below ``tests``."""

    @property
    def path(self) -> str:
        """The changed file in the project."""
        return f"{PACKAGE}/{self.module}"

    def applied(self, text: str) -> str:
        """Return the file's text with the mistake."""
        if text.count(self.right) != 1:
            raise LookupError(f"{self.path} has {self.right!r} {text.count(self.right)} times, not once.")
        return text.replace(self.right, self.wrong)


BOUNDS, PUSH, FENCE = (
    "connectors/postgres/predicates.py",
    "core/push/wait_queue.py",
    "connectors/postgres/tasks/slice_commit.py",
)

MUTANTS = (
    Mutant(
        name="a marker is not compared by its bounds",
        module="core/snapshot/bounds.py",
        right="if there != asked:",
        wrong="if False:",
        test="conformance/sinks/test_commits.py::test_a_marker_with_other_bounds_is_not_taken_for_the_range",
    ),
    Mutant(
        name="the fence is not compared",
        module=FENCE,
        right="if row != (plan_id, epoch):",
        wrong="if False:",
        test="conformance/sinks/test_commits.py::test_an_older_epoch_of_the_same_plan_is_refused",
    ),
    Mutant(
        name="a window goes in although one of its tables was planned again",
        module=FENCE,
        right="held += [(table.write.fence, table.plan_id, table.epoch) for table in spec.tables]",
        wrong="held += []",
        test="integration/test_stream.py::test_no_window_goes_in_where_one_of_its_tables_was_planned_again",
    ),
    Mutant(
        name="a truncate of several tables empties one",
        module="connectors/postgres/tasks/pgoutput_decoder.py",
        right="for place in sorted(truncated):",
        wrong="for place in sorted(truncated)[:1]:",
        test="unit/connectors/postgres/tasks/test_pgoutput_decoder.py::test_one_truncate_empties_all_tables_that_it_names",
    ),
    Mutant(
        name="a table of a shared log is decoded by later columns",
        module="connectors/postgres/tasks/pgoutput_decoder.py",
        right="yield from self._decode(parts)\n                self._learn(body)",
        wrong="self._learn(body)",
        test=(
            "unit/connectors/postgres/tasks/test_pgoutput_decoder.py"
            "::test_what_came_before_a_table_was_altered_is_decoded_by_its_columns_of_then"
        ),
    ),
    Mutant(
        name="a window between ranges goes in before readers see it",
        module="connectors/postgres/tasks/change_apply.py",
        right="    changes.await_visible(changed)",
        wrong="    pass",
        test="integration/test_replayed_changes.py::test_a_window_between_ranges_goes_in_once_readers_see_it",
    ),
    Mutant(
        name="windows between ranges leave the epoch of the ranges as it is",
        module="core/planning/shared_log_windows.py",
        right="epoch = member.sink.renew(plan.plan_id)",
        wrong="epoch = plan.epoch",
        test=(
            "integration/test_followed_table_turns.py::test_a_range_that_was_read_before_a_window_is_refused_behind_it"
        ),
    ),
    Mutant(
        name="the fence is read without `FOR SHARE`",
        module=FENCE,
        right='"FOR SHARE" if lock else ""',
        wrong='""',
        test="conformance/sinks/test_fence.py::test_a_newer_plan_waits_for_an_attempt_that_has_passed_the_fence",
    ),
    Mutant(
        name="a credit is returned on submission",
        module="ledger/tables/range.py",
        right="(table.c.hydration_id == owner, is_in(RangeState.ADMITTED, table))",
        wrong="(table.c.hydration_id == owner, is_in(RangeState.ADMITTED, table), table.c.session_id.is_(None))",
        test="conformance/ledger/test_admission.py::test_every_credit_in_flight_refuses_the_next",
    ),
    Mutant(
        name="a range's upper bound is inclusive",
        module=BOUNDS,
        right='(sql.SQL("<"), bounds.end)',
        wrong='(sql.SQL("<="), bounds.end)',
        test="unit/connectors/postgres/test_predicates.py::test_bounds_are_half_open",
    ),
    Mutant(
        name="a range's lower bound is exclusive",
        module=BOUNDS,
        right='(sql.SQL(">="), bounds.start)',
        wrong='(sql.SQL(">"), bounds.start)',
        test="unit/connectors/postgres/test_predicates.py::test_bounds_are_half_open",
    ),
    Mutant(
        name="a frontier's difference may be negative",
        module="core/snapshot/topic_offsets.py",
        right="max(0, position - earlier.get(key, 0)) for",
        wrong="position - earlier.get(key, 0) for",
        test="unit/core/snapshot/test_frontier.py::test_difference_is_never_negative_and_zero_for_what_is_reached",
    ),
    Mutant(
        name="verification always says equal",
        module="core/verification/verifier.py",
        right='return " and ".join(differences)',
        wrong='return ""',
        test="unit/core/execution/test_lane_runner.py::test_verification_names_the_range_that_differs",
    ),
    Mutant(
        name="the completion check does not add up",
        module="core/verification/completeness_check.py",
        right="if total is None or found.skipped or found.rows == total:",
        wrong="if True:",
        test="unit/core/verification/test_completeness_check.py::test_rows_that_did_not_arrive_are_missed",
    ),
    Mutant(
        name="push applies any number",
        module=PUSH,
        right="if diff.number == self.number + 1 and diff.changes is not None:",
        wrong="if diff.changes is not None:",
        test="unit/core/push/test_gate_cache.py::test_anything_else_has_to_be_read",
    ),
    Mutant(
        name="the queue ignores priority",
        module="core/gate/cluster_queue.py",
        right="(-entry.priority, entry.ready_at, entry.hydration_id)",
        wrong="(entry.ready_at, entry.hydration_id)",
        test="conformance/ledger/test_queue.py::test_a_higher_priority_goes_first",
    ),
    Mutant(
        name="expected starts are 1,000 s off",
        module="core/gate/cluster_queue.py",
        right="start if math.isfinite(start) else None",
        wrong="start + 1000 if math.isfinite(start) else None",
        test="unit/core/gate/test_cluster_queue.py::test_each_end_lets_the_next_one_in",
    ),
    Mutant(
        name="the memory's baseline is measured while ranges are in flight",
        module="core/admission/permits_and_reservations.py",
        right="if reading is not None and not state.reserved_bytes and not state.in_flight:",
        wrong="if reading is not None:",
        test="unit/core/admission/test_baseline.py::test_what_ranges_in_flight_take_is_not_counted_twice",
    ),
    Mutant(
        name="retention's milliseconds are taken for seconds",
        module="connectors/kafka/source/retention_and_lag.py",
        right="milliseconds / 1000 if deletes",
        wrong="milliseconds if deletes",
        test="unit/connectors/kafka/source/test_retention_and_lag.py::test_retention_is_told_in_milliseconds_and_kept_in_seconds",
    ),
    Mutant(
        name="a slice of a topic holds the offset at its end",
        module="connectors/kafka/tasks/read.py",
        right="if offset < self.ends[partition]:",
        wrong="if offset <= self.ends[partition]:",
        test="integration/test_kafka_source.py::test_a_slice_holds_just_its_offsets",
    ),
    Mutant(
        name="a window of the log lacks the commit at its start",
        module="connectors/postgres/tasks/pgoutput_decoder.py",
        right='self._start <= int.from_bytes(body[1:9], "big") < self._end',
        wrong='self._start < int.from_bytes(body[1:9], "big") < self._end',
        test="unit/connectors/postgres/tasks/test_pgoutput_decoder.py::test_a_window_holds_the_commits_from_its_start_to_before_its_end",
    ),
    Mutant(
        name="a window's lower bound is inclusive",
        module=BOUNDS,
        right='sql.SQL("{} > {}").format(column, _value(window.after, cast))',
        wrong='sql.SQL("{} >= {}").format(column, _value(window.after, cast))',
        test="unit/connectors/postgres/test_predicates.py::test_the_first_window_has_the_rows_without_a_value_too",
    ),
)


def table() -> str:
    """Return the mutations and the tests that notice them, for the page of faults."""
    rows = [(mutant.name, *reversed(mutant.test.split("::"))) for mutant in MUTANTS]
    head = "| What is wrong | Noticed by |\n| --- | --- |"
    return "\n".join([head, *(f"| {name} | `{test}` ({file}) |" for name, test, file in rows)])


@contextmanager
def copied() -> Iterator[Path]:
    """Give a copy of what git has of the project, with the changes that are not committed."""
    names = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=PROJECT, check=True, capture_output=True
    )
    with tempfile.TemporaryDirectory(prefix="mutants-") as home:
        for name in names.stdout.decode().splitlines():
            if (PROJECT / name).is_file():
                (Path(home) / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(PROJECT / name, Path(home) / name)
        yield Path(home)


def noticed(mutant: Mutant, home: Path) -> bool:
    """Whether the test passes on the copy as it is, and fails with the mistake."""
    path = home / mutant.path
    right = path.read_text()
    if not _passes(mutant, home):
        raise LookupError(f"tests/{mutant.test} fails without any mutation.")
    path.write_text(mutant.applied(right))
    try:
        return not _passes(mutant, home)
    finally:
        path.write_text(right)


def _passes(mutant: Mutant, home: Path) -> bool:
    """Run the test. An error that is no failed test, as that it is not there, is an error here, too."""
    run = [sys.executable, "-B", "-m", "pytest", "-q", "-x", "-m", "not long", f"tests/{mutant.test}"]
    done = subprocess.run(run, cwd=home, capture_output=True, text=True, timeout=SECONDS)
    if done.returncode not in (0, 1):
        raise LookupError(f"tests/{mutant.test} did not run:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.returncode == 0


def main() -> int:
    """Try them and print; 1 where one is not noticed."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.mutants", description=__doc__)
    parser.add_argument("name", nargs="?", default="", help="part of the mutations' names")
    wanted = parser.parse_args()
    with copied() as home:
        results = []
        for mutant in MUTANTS:
            if wanted.name in mutant.name:
                results.append(noticed(mutant, home))
                print(f"{'noticed ' if results[-1] else 'SURVIVED'}  {mutant.name}: {mutant.test}", flush=True)
    print(f"{sum(results)} of {len(results)} noticed")
    return 0 if all(results) and results else 1


if __name__ == "__main__":
    raise SystemExit(main())
