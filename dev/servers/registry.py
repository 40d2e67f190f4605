"""Apicurio Registry, which answers as a schema registry of Confluent does. It keeps everything in memory."""

import json
import os
import re
import shutil
import signal
import subprocess
import urllib.request
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from dev.servers.server import HOST, Kind, Launch, Options, Place, Server, ServiceError

NEEDED = 21
"""Java's version."""
INSTALLED = Path("/usr/lib/jvm")
_HOME = re.compile(r"JAVA_HOME_\d+_\w+")
SMALL = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
API = "/apis/ccompat/v7"
MISSING = f"The schema registry needs Java {NEEDED} or newer, beside the one that Spark takes: install one."


class Registry(Kind):
    """The registry; its address is that of the interface that Confluent's clients know."""

    ports = ("port", "management_port")
    stop_signal = signal.SIGTERM
    patience = 8.0
    deadline = 120.0

    def chosen(self, options: Options) -> dict[str, Any]:
        """Nothing."""
        return {}

    def prepare(self, place: Place, options: Options, ports: Mapping[str, int]) -> Launch:
        """Fetch and unpack it."""
        java = find_java()
        if java is None:
            raise ServiceError(MISSING)
        folder = place.downloads.unpacked("registry")
        # The management port listens on every address unless it is named.
        settings = {
            "quarkus.http.host": HOST,
            "quarkus.http.port": ports["port"],
            "quarkus.management.host": HOST,
            "quarkus.management.port": ports["management_port"],
            "java.io.tmpdir": place.folder,
        }
        defined = [f"-D{name}={value}" for name, value in settings.items()]
        url = f"http://{HOST}:{ports['port']}{API}"
        return Launch(
            command=[java, *SMALL, *defined, "-jar", str(folder / "quarkus-run.jar")], cwd=place.folder, url=url
        )

    def answers(self, server: Server) -> bool:
        """Whether it lists its subjects."""
        try:
            with urllib.request.urlopen(f"{server.url}/subjects", timeout=2.0) as answer:
                return isinstance(json.load(answer), list)
        except (OSError, ValueError):
            return False


@cache
def find_java() -> str | None:
    """Return a Java that is new enough: the one that Spark takes, or another one that is installed beside it.

    Continuous integration names each in a variable, as ``JAVA_HOME_21_X64``.
    """
    home = os.environ.get("JAVA_HOME")
    first = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    named = [str(Path(place) / "bin" / "java") for name, place in sorted(os.environ.items()) if _HOME.fullmatch(name)]
    others = sorted(str(path) for path in INSTALLED.glob("*/bin/java"))
    return next((java for java in [first, *named, *others] if java and _version(java) >= NEEDED), None)


def _version(java: str) -> int:
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    except OSError:
        return 0
    found = re.search(r'version "(\d+)', said)
    return int(found.group(1)) if found else 0
