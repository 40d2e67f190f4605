"""Virtual environments beside the one that runs this: made by uv once, and again where their requirements changed."""

import hashlib
import subprocess
import sys
from pathlib import Path


def make(folder: Path, *requirements: str, python: str = sys.executable) -> Path:
    """Return the interpreter of an environment with what ``uv pip install`` takes; ``python``: path or version."""
    interpreter, mark = folder / "bin" / "python", folder / ".requirements"
    wanted = hashlib.sha256("\n".join((python, *requirements)).encode()).hexdigest()
    if not mark.exists() or mark.read_text() != wanted:
        uv("venv", "--clear", "--python", python, str(folder))
        uv("pip", "install", "--python", str(interpreter), *requirements)
        mark.write_text(wanted)
    return interpreter


def uv(*words: str) -> None:
    """Run uv, and end this program with what it said where it fails."""
    done = subprocess.run([sys.executable, "-m", "uv", *words, "--quiet"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"`uv {' '.join(words)}` failed:\n{done.stderr}")
