"""What the product must not be: each mistake can still be made in the code, and the test that notices it is there."""

import ast
from pathlib import Path

import pytest

from tests.support.mutants import MUTANTS, PROJECT, Mutant, copied, noticed, table


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mistake_can_be_made_and_its_test_is_run_by_make_test(mutant: Mutant) -> None:
    """The code has the place once, still is Python with it, and the test is not a long one."""
    ast.parse(mutant.applied((PROJECT / mutant.path).read_text()))
    file, name = mutant.test.split("::")
    module = ast.parse((PROJECT / "tests" / file).read_text())
    (test,) = (node for node in module.body if isinstance(node, ast.FunctionDef) and node.name == name)
    marks = [ast.unparse(mark) for mark in test.decorator_list]
    marks += [ast.unparse(node.value) for node in module.body if isinstance(node, ast.Assign)]
    assert not [mark for mark in marks if "mark.long" in mark]


def test_the_page_names_them(repository: Path) -> None:
    """With the test that notices each."""
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 15
    assert table() in (repository / "docs" / "reference" / "faults.md").read_text()


@pytest.mark.long
def test_every_mistake_is_noticed() -> None:
    """Made in a copy of the project, one after the other."""
    with copied() as home:
        survived = [mutant.name for mutant in MUTANTS if not noticed(mutant, home)]
    assert not survived
