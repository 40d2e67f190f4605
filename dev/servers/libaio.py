"""The one library that MySQL needs and small systems lack."""

import ctypes

from dev.servers import debian
from dev.servers.server import Place

LIBRARY = "libaio.so.1"
PACKAGES = ("libaio1", "libaio1t64")  # the second from Debian 13 and Ubuntu 24.04 on
LACKING = f"MySQL needs {LIBRARY}: install it (Debian: `apt-get install libaio1`; Fedora: `dnf install libaio`)."


def folder(place: Place) -> str:
    """Return the folder to look for the library in; empty where the system has it."""
    try:
        ctypes.CDLL(LIBRARY)
    except OSError:
        tree = debian.unpacked(place.downloads.folder, "libaio", [PACKAGES], mark=place.mark, lacking=LACKING)
        return str(next(tree.rglob(f"{LIBRARY}*")).parent)
    return ""
