"""Words to avoid are found in prose, and nothing in code is taken for one."""

import pytest

from dev.language import find_avoided

BAD = [
    pytest.param("a.py", '"""Tells the lane."""\n', [(1, "Tells")], id="docstring"),
    pytest.param("a.py", "# The gate opens; else it\n# goes\n# on.\n", [(1, "; else"), (2, "goes # on")], id="comment"),
    pytest.param("a.py", 'raise Refused(f"{name}: read it "\n    f"anew.")\n', [(2, "anew")], id="message"),
    pytest.param("a.py", 'text = ("the run goes "\n    f"on")\n', [(1, 'goes " f"on')], id="literals"),
    pytest.param("a.md", "An owner\n\nwrites it by hand.\n", [(3, "hand")], id="page"),
    pytest.param("a.js", "const told = `Whoever ${told} waits`; // upon\n", [(1, "Whoever"), (1, "upon")], id="script"),
    pytest.param("a.html", "<p>Lest it ends</p>", [(1, "Lest")], id="label"),
]
GOOD = [
    pytest.param("a.py", 'told = hand if anew else upon\nlook(tell="told")\n', id="names"),
    pytest.param("a.py", 'query = "CASE WHEN x THEN y ELSE z END"\n', id="sql"),
    pytest.param("a.py", '"""Handle a handler: nothing else takes up to a second. See :meth:`tell`."""\n', id="words"),
    pytest.param("a.py", 'print(f"{told.kind} goes back, and on {told}")\n', id="fields"),
    pytest.param("a.md", "Run `tell`:\n\n```sql\nSELECT 1; else told\n```\n", id="code"),
    pytest.param("a.js", 'import "./tap.svg"; if (told) { hand(); } else { tap(); }\n', id="script"),
]


def find(name: str, text: str) -> list[tuple[int, str]]:
    return sorted(each[:2] for each in find_avoided(name.removeprefix("a"), text))


@pytest.mark.parametrize(("name", "text", "found"), BAD)
def test_a_word_to_avoid_is_found_with_its_line(name: str, text: str, found: list[tuple[int, str]]) -> None:
    assert find(name, text) == found


@pytest.mark.parametrize(("name", "text"), GOOD)
def test_code_and_plain_words_pass(name: str, text: str) -> None:
    assert find(name, text) == []
