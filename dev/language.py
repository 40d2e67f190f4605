"""Checks words: comments, docstrings, messages, labels and pages use plain English.

``python -m dev.language`` prints each word to avoid with its file and line, and fails where there is one.
"""

import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FILES = (
    "airflow_provider_backpressure/**/*.py",
    "airflow_provider_backpressure/plugins/static/*.js",
    "airflow_provider_backpressure/plugins/static/*.html",
    "benchmarks/**/*.py",
    "dags/*.py",
    "dev/**/*.py",
    "spark_jobs/*.py",
    "docs/**/*.md",
    "*.md",
)
LISTS = ("dev/language.py", "dev/naming.py")
"""Files that list the words themselves."""
AVOIDED = {
    "anew|made new": "again",
    "tells?|told|telling|foretold|foretells?": "say, report or show",
    "of ours": "our",
    "(?-i:[,;:.] else|or else|Else)": "otherwise",
    "whoever": "the name of the thing",
    "whose turn": "next",
    "hands?": "pass or manual",
    r"taps?(?!-dark|\.svg)": "gate",
    "upon": "on",
    "such that": "so that",
    "lest": "so that … not",
    "thereby": "so",
    "(?:give|gives|gave|given|giving) back": "return",
    "(?:go|goes|went|gone|going) on": "continue",
    "(?:has|have|had) come": "arrive",
    "(?:take|takes|took|taken|taking) up(?! to)": "start, read or continue with",
    "(?:stand|stands|stood|standing)(?! (?:for|still|out))": "is, exists or remains",
}
"""Patterns of words to avoid, each with what to write instead."""
GAP = r"""[\s"'#*]+(?:f")?"""
"""Between the words of a phrase, whose second line may be a comment or a literal of its own."""
PATTERNS = {
    re.compile(rf"(?<![\w.{{-](?=\w))(?<!:`)(?:{words})(?![\w-])".replace(" ", GAP), re.IGNORECASE): plain
    for words, plain in AVOIDED.items()
}
QUOTES = {mark * 2 for mark in "\"'*`"}
"""Around a single word that is a name or a key."""
FENCE = re.compile(r"^( *)```.*?^\1```|`[^`\n]+`", re.MULTILINE | re.DOTALL)
"""Code in a page."""
SCRIPT = re.compile(r"""//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|`(?:\\.|[^`\\])*`""", re.DOTALL)
"""Comments and strings of JavaScript."""


def find_avoided(suffix: str, text: str) -> Iterator[tuple[int, str, str]]:
    """Yield line, words, and what to write instead, of each place of a file that has words to avoid."""
    prose = blank_code(suffix, text)
    for pattern, plain in PATTERNS.items():
        for found in pattern.finditer(prose):
            if prose[found.start() - 1 : found.start()] + prose[found.end() : found.end() + 1] not in QUOTES:
                yield prose.count("\n", 0, found.start()) + 1, " ".join(found[0].split()), plain


def blank_code(suffix: str, text: str) -> str:
    """Return the text of a file without its code, each word on the line where it was."""
    if suffix == ".md":
        return FENCE.sub(lambda code: "|" + "\n" * code[0].count("\n"), text)
    if suffix == ".js":
        code, words = SCRIPT.split(text), [*SCRIPT.findall(text), ""]
        return "".join("|" + "\n" * each.count("\n") + word for each, word in zip(code, words, strict=True))
    if suffix != ".py":
        return text
    prose, line = list[str](), 1
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in (tokenize.COMMENT, tokenize.STRING):
            part = token.string + " "
        elif tokenize.tok_name[token.type].startswith("FSTRING"):
            # As of Python 3.12 a string with values is several tokens.
            part = token.string + (" " if tokenize.tok_name[token.type] == "FSTRING_END" else "")
        else:
            part = "|" if token.string.strip() else ""
        prose += ["\n" * (token.start[0] - line), part]
        line = token.start[0] + part.count("\n")
    return "".join(prose)


def main() -> int:
    """Print every place that has words to avoid; return 1 where there is one."""
    paths = sorted({path for pattern in FILES for path in ROOT.glob(pattern)} - {ROOT / name for name in LISTS})
    broken = [(path, *each) for path in paths for each in sorted(find_avoided(path.suffix, path.read_text()))]
    for path, line, words, plain in broken:
        print(f"{path.relative_to(ROOT)}:{line}: “{words}”. Write {plain}.")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
