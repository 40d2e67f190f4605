"""Our own code as one zip file for the executors, so that nothing of this package need be installed there."""

import hashlib
import tempfile
import zipfile
from functools import cache
from pathlib import Path

import airflow_provider_backpressure

PARTS = ("core", "postgres", "spark")
"""Rooms that run inside a task; beside them the package's own ``__init__`` and ``exceptions``."""
_EPOCH = (1980, 1, 1, 0, 0, 0)


@cache
def shipment() -> Path:
    """Return the zip, built once per process; its name follows its content."""
    root = Path(airflow_provider_backpressure.__file__).parent
    files = [root / "__init__.py", root / "exceptions.py"]
    files += [file for part in PARTS for file in sorted((root / part).rglob("*.py"))]
    contents = [(file.relative_to(root.parent).as_posix(), file.read_bytes()) for file in files]
    digest = hashlib.sha256(b"\0".join(name.encode() + b"\0" + content for name, content in contents)).hexdigest()
    path = Path(tempfile.mkdtemp(prefix="backpressure-")) / f"{root.name}-{digest[:16]}.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in contents:
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), content)
    return path
