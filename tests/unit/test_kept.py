"""The search for secrets finds them however they are written down: what it does not find would pass for clean."""

import base64
import json
from pathlib import Path

import pytest
from cryptography.fernet import Fernet

from tests.support.kept import Search

SECRET = "canary_in-1-mine"


@pytest.fixture
def search() -> Search:
    return Search(secrets={"bird": SECRET, "other": "another-one"}, key=Fernet.generate_key().decode())


@pytest.mark.parametrize("before", range(4))
def test_spellings(search: Search, before: int) -> None:
    """As it is, as bytes are shown, in base64 wherever it begins, and encrypted."""
    text = b"u:@ "[:before] + SECRET.encode() + b"\x00tail"
    encrypted = Fernet(search.key).encrypt(json.dumps({"login": SECRET}).encode()).decode()
    for spelled in (text.decode(), rf"(1,\\x{text.hex()})", base64.b64encode(text).decode(), f'{{"k": "{encrypted}"}}'):
        assert search.within(f"a {spelled} b") == {"bird"}, spelled
    assert search.within(SECRET[:-1] + Fernet(Fernet.generate_key()).encrypt(SECRET.encode()).decode()) == set()


def test_files(search: Search, tmp_path: Path) -> None:
    """At any depth, and bytes that are no text."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b.log").write_bytes(b"\xff\xfe" + SECRET.encode())
    (tmp_path / "c").write_text("nothing")
    assert search.files(tmp_path) == {"a/b.log": {"bird"}}
