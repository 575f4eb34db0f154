"""Mutants of templates and sweeps: `push --grid`, `push --each`, and what `run` and `fanout` share with them."""

from typing import Final

from tests.mutants.mutant import Mutant

_GRID: Final = "tests/unit/test_grid.py"
_REFUSED: Final = f"{_GRID}::test_what_no_record_can_be_made_of_is_refused_with_its_place"

SWEEPS: Final[tuple[Mutant, ...]] = (
    Mutant(
        name="a field in the text of a program is filled in",
        file="jobq/submit/command_template.py",
        text='if names and re.search(r"\\s", word):',
        wrong="if names and not word:",
        test="tests/cli/push/test_templates.py::test_a_field_beside_white_space_is_refused",
    ),
    Mutant(
        name="the last name is slowest",
        file="jobq/submit/grid.py",
        text="for axis in reversed(self.axes):",
        wrong="for axis in self.axes:",
        test=f"{_GRID}::test_the_first_name_is_slowest",
    ),
    Mutant(
        name="any number of points is taken",
        file="jobq/submit/grid.py",
        text="if count > MAX_POINTS:",
        wrong="if count < 0:",
        test=f"{_GRID}::test_points_of_a_file_and_a_grid_are_counted_together",
    ),
    Mutant(
        name="a range loses its width",
        file="jobq/submit/grid.py",
        text="max(len(first), len(last)) if is_padded else 1",
        wrong="1",
        test=f"{_GRID}::test_values_are_text_as_they_are_written",
    ),
    Mutant(
        name="a column that stands twice is taken once",
        file="jobq/submit/each_file.py",
        text="            if name in seen:",
        wrong="            if not name:",
        test=_REFUSED,
    ),
    Mutant(
        name="a ragged row loses values",
        file="jobq/submit/each_file.py",
        text="            if len(row) != len(self.names):",
        wrong="            if not row:",
        test=_REFUSED,
    ),
    Mutant(
        name="a number is rounded",
        file="jobq/formats/strict_json.py",
        text="parse_int=str, parse_float=str",
        wrong="parse_int=str, parse_float=lambda text: str(float(text))",
        test=f"{_GRID}::test_what_a_file_holds",
    ),
    Mutant(
        name="a push that goes on within a record skips the rest of it",
        file="jobq/submit/points.py",
        text="begin if done else end",
        wrong="end",
        test=f"{_GRID}::test_points_are_the_same_wherever_pages_end",
    ),
    Mutant(
        name="another grid goes on under the same name",
        file="jobq/submit/points.py",
        text='{"--grid": _digest(*grids)}',
        wrong='{"--grid": _digest()}',
        test="tests/cli/push/test_grid_resume.py::test_another_sweep_under_the_same_name_is_refused",
    ),
    Mutant(
        name="a push of a file's records goes on as one without",
        file="jobq/submit/points.py",
        text='{**definition, "--each": "none"}',
        wrong="definition",
        test="tests/cli/push/test_grid_resume.py::test_another_sweep_under_the_same_name_is_refused",
    ),
    Mutant(
        name="a file that is rewritten while it is read is queued in part",
        file="jobq/submit/record_sources.py",
        text="self.file.check_unchanged(Progress(after=after))",
        wrong="pass",
        test="tests/cli/push/test_grid_resume.py::test_a_file_that_is_changed_while_it_is_read_is_refused",
    ),
    Mutant(
        name="ids of points do not sort as the points",
        file="jobq/submit/record_tasks.py",
        text="return len(str(max(0, count - 1)))",
        wrong="return count * 0 + 1",
        test="tests/cli/push/test_grid.py::test_the_queue_says_the_ids_and_waits_as_for_any_push",
    ),
    Mutant(
        name="a value of a grid is tried when its page is queued",
        file="jobq/submit/record_tasks.py",
        text="for record in self.records.samples:",
        wrong="for record in ():",
        test="tests/cli/push/test_grid.py::test_what_is_refused_is_refused_before_anything_is_queued",
    ),
)
