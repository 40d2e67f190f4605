"""Says in one sentence what a machine lacks to build and run this project; run by any Python, before anything else."""

import os
import re
import shutil
import subprocess
import sys


def missing() -> "str | None":
    """Return what is missing and how to get it, or None."""
    if sys.version_info < (3, 11):  # noqa: UP036 - this file runs on an older Python, to say so
        return f"Python 3.11 or newer is needed, not {sys.version.split()[0]}: `make PYTHON=python3.12 test` names one."
    try:
        import ensurepip  # noqa: F401
        import venv  # noqa: F401
    except ImportError:
        return "Python's venv module is missing: install it (Debian, Ubuntu: `apt-get install python3-venv`)."
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    if not java or not os.access(java, os.X_OK):
        return "Spark needs Java 17 or 21: install one (Debian: `apt-get install openjdk-17-jre-headless`)."
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    found = re.search(r'version "(\d+)', said)
    if not found or int(found.group(1)) < 17:
        return (
            f"Java 17 or 21 is needed by Spark, {java} is {said.splitlines()[0] if said else 'unknown'}: set JAVA_HOME."
        )
    return None


if __name__ == "__main__":
    lacking = missing()
    if lacking:
        sys.exit(lacking)
