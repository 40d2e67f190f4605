"""Checks names: modules and classes are nouns, functions are verbs, and no word is a riddle.

``python -m dev.naming`` prints each name that breaks a rule, and fails where there is one.
"""

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "airflow_provider_backpressure"
AGREED = frozenset(
    {
        "__init__",
        "changes",
        "compatibility",
        "config",
        "connect",
        "copy",
        "errors",
        "health",
        "read",
        "table",
        "target",
        "types",
        "write",
    }
)
"""File names that every connector has."""
FOREIGN = frozenset({"shared_stream_key"})
"""Methods that Airflow calls."""
MOST = 3
"""Modules of the same file name."""
RIDDLES = frozenset(
    {
        "among",
        "aside",
        "between",
        "desk",
        "ear",
        "glance",
        "hand",
        "knife",
        "meant",
        "named",
        "of",
        "opened",
        "said",
        "shelf",
        "shown",
        "sieve",
        "slate",
        "tap",
        "told",
        "whole",
    }
)
METAPHORS = frozenset({"desk", "ear", "glance", "knife", "shelf", "sieve", "slate"})
"""Words that no name has in it, those of values neither."""
WORD = re.compile(r"[A-Z]?[a-z]+")
VERBS = "need|exceed|feed|seed|read|embed|shed|ping|ring|string|spring|bring|thing"
PARTICIPLE = re.compile(rf"(?!({VERBS})(_|$))[a-z]+(ed|ing)(_|$)")
"""The first word of a function's name that is a participle or a gerund."""


def find_broken() -> Iterator[str]:
    """Yield ``path::name`` of each name that breaks a rule."""
    modules = sorted(path for path in PACKAGE.rglob("*.py") if "versions" not in path.parts)
    stems = Counter(path.stem for path in modules)
    for path in modules:
        where = path.relative_to(PACKAGE).as_posix()
        if path.stem in RIDDLES or (stems[path.stem] > MOST and path.stem not in AGREED):
            yield where
        for node in ast.walk(ast.parse(path.read_text())):
            if METAPHORS & {word.lower() for word in WORD.findall(get_name(node))}:
                yield f"{where}::{get_name(node)}"
            if isinstance(node, ast.ClassDef) and node.name.lower() in RIDDLES:
                yield f"{where}::{node.name}"
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                name = node.name.strip("_")
                if name in RIDDLES or (PARTICIPLE.match(name) and name not in FOREIGN and not is_property(node)):
                    yield f"{where}::{node.name}"


def get_name(node: ast.AST) -> str:
    """Return the name that a piece of code gives or uses; empty where it has none."""
    for field in ("id", "attr", "arg", "name"):
        if isinstance(name := getattr(node, field, None), str):
            return name
    return ""


def is_property(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether a function is read as a value, which may be a noun or a state."""
    return any(isinstance(each, ast.Name) and "property" in each.id for each in node.decorator_list)


def main() -> int:
    """Print every name that breaks a rule; return 1 where there is one."""
    broken = sorted(set(find_broken()))
    for name in broken:
        print(f"{name}: give it a noun (module, class) or a verb (function), and no name that {MOST} modules have.")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
