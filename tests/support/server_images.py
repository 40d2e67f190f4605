"""The disk of a real server, as a snapshot of its volume keeps it."""

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from dev.services import Services


@dataclass(frozen=True, kw_only=True)
class Image:
    """What the disk of one server held."""

    server: str
    folder: str
    kept: Path
    services: Services

    @classmethod
    def take(cls, services: Services, server: str, folder: str, kept: Path) -> Self:
        """Keep what the disk holds now."""
        image = cls(server=server, folder=folder, kept=kept, services=services)
        image._exchange(folder, kept)
        return image

    def restore(self) -> None:
        """Let the server have it again."""
        self._exchange(self.kept, self.folder)

    def _exchange(self, source: str | Path, target: str | Path) -> None:
        self.services.kill(self.server)
        subprocess.run(["rm", "-rf", target], check=True)
        subprocess.run(["cp", "-a", source, target], check=True)
        self.services.restart(self.server)
