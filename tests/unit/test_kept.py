"""The search for secrets finds them however they are written down: what it does not find would pass for clean."""

import base64
import html
import json
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import quote, quote_plus

import pytest
from cryptography.fernet import Fernet

from tests.support.kept import Search, stands_in
from tests.support.processes import Processes

SECRET, ODD = "canary_in-1-mine", 'c\'n@ry:in/1 "min€"\\+%é&'


@pytest.fixture
def search() -> Search:
    return Search(secrets={"bird": SECRET, "other": "another-one"}, key=Fernet.generate_key().decode())


@pytest.mark.parametrize("before", range(4))
@pytest.mark.parametrize("secret", [SECRET, ODD], ids=["plain", "odd"])
def test_spellings(secret: str, before: int) -> None:
    """As it is, as others write it, as bytes are shown, in base64 wherever it begins, and encrypted."""
    search = Search(secrets={"bird": secret, "other": "another-one"}, key=Fernet.generate_key().decode())
    text = b"u:@ "[:before] + secret.encode() + b"\x00tail"
    encrypted = Fernet(search.key).encrypt(json.dumps({"login": secret}).encode()).decode()
    for spelled in (
        text.decode(),
        rf"(1,\\x{text.hex()})",
        base64.b64encode(text).decode(),
        base64.urlsafe_b64encode(text).decode(),
        base64.b64encode(json.dumps({"k": " "[:before] + secret}).encode()).decode(),
        f'{{"k": "{encrypted}"}}',
        f"postgresql://u:{quote(secret, safe='')}@h/d?password={quote_plus(secret)}",
        json.dumps({"password": secret}),
        json.dumps(json.dumps({"password": secret})) if secret == SECRET else "",
        repr({"password": secret}),
        html.escape(secret),
    ):
        assert search.within(f"a {spelled} b") == ({"bird"} if spelled else set()), spelled
    assert search.within(secret[:-1] + Fernet(Fernet.generate_key()).encrypt(secret.encode()).decode()) == set()


def test_a_long_word_is_found_however_often_the_rest_was_escaped() -> None:
    """As in JSON within JSON within a row, of which nobody makes a list."""
    secret = f'"{"a1B2" * 5}\\'
    assert stands_in(secret, json.dumps(json.dumps(repr(json.dumps(secret)))).encode())
    assert not stands_in(secret, "a1B2" * 4)


def test_files(search: Search, tmp_path: Path) -> None:
    """At any depth, and bytes that are no text."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b.log").write_bytes(b"\xff\xfe" + SECRET.encode())
    (tmp_path / "c").write_text("nothing")
    assert search.files(tmp_path) == {"a/b.log": {"bird"}}


def test_processes_are_seen_while_they_live() -> None:
    """Their command lines and environments, also of one in another session whose parent has ended."""
    nap = "import time; time.sleep(0.5)"
    start = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {nap!r}, 'in-' + 'the-line'])"
    parent = f"{start}; import time; time.sleep(0.2)"
    with Processes().looking() as seen:
        subprocess.run([sys.executable, "-c", parent], env={"A": SECRET}, start_new_session=True, check=True)
        time.sleep(0.5)
    found = seen.leaks({"line": "in-the-line", "word": SECRET})
    assert {place.partition(" of ")[0]: names for place, names in found.items()} == {
        "cmdline": {"line"},
        "environ": {"word"},
    }
    assert 2 <= seen.commands("in-the-line") < seen.looks
