"""Characters of bars, curves and credits, with and without Unicode."""

from dataclasses import dataclass

from rich.console import Console, ConsoleOptions

from airflow_provider_backpressure.cli.render.status_values import ASCII_LEVELS, LEVELS
from airflow_provider_backpressure.core.stage_metrics import StageTime
from airflow_provider_backpressure.core.stage_metrics import State as StageState


@dataclass(frozen=True, kw_only=True)
class Marks:
    """Characters. They differ in shape, so that nothing depends on colour."""

    full: str
    rest: str
    held: str
    taken: str
    free: str
    off: str
    arrow: str
    levels: str
    """Of a curve, the lowest first."""

    def bar(self, percent: float, width: int) -> str:
        """Return a bar; it is full at 100 % only."""
        done = int(width * max(0.0, min(100.0, percent)) / 100.0)
        return self.full * done + self.rest * (width - done)

    def time(self, spent: StageTime, width: int) -> str:
        """Return what a stage did with its time: busy, held back, idle."""
        busy = round(width * spent.share(StageState.BUSY))
        held = min(width - busy, round(width * spent.share(StageState.BACKPRESSURED)))
        return self.full * busy + self.held * held + self.rest * (width - busy - held)

    def dots(self, in_flight: int, credits: int, most: int, width: int) -> str:
        """Return a dot for each credit: taken, free, or not given out at present; fewer where there is no room."""
        scale = min(1.0, width / max(1, most))
        taken, given = round(in_flight * scale), round(credits * scale)
        shown = min(width, max(1, round(most * scale), taken))
        return "".join(self.taken if at < taken else self.free if at < given else self.off for at in range(shown))


UNICODE = Marks(full="█", rest="░", held="▒", taken="●", free="○", off="·", arrow="─▶", levels=LEVELS)
ASCII = Marks(full="#", rest=".", held="=", taken="*", free="o", off=".", arrow="->", levels=ASCII_LEVELS)


def marks(place: Console | ConsoleOptions) -> Marks:
    """Return the set that can be written there."""
    options = place.options if isinstance(place, Console) else place
    return ASCII if options.ascii_only else UNICODE
