"""One life of a hydration over the installed package, with its ledger in Airflow's own database.

The target outlives a life in a file, as a real one does in its own server. ``half_done`` lies beside this script.
"""

import json
import sys
from contextlib import closing
from pathlib import Path

from half_done import MortalRunner, hydrate, kept, target

from airflow_provider_backpressure.hooks.backpressure import BackpressureHook
from airflow_provider_backpressure.testing import MemoryRunner, MemorySink


def main(path: Path, what: str) -> None:
    """Be killed on the way, or hydrate to the end and print what this life has submitted."""
    sink = target(json.loads(path.read_text())) if path.exists() else MemorySink()
    with closing(BackpressureHook().ledger()) as ledger:
        try:
            verdict, submitted = hydrate(ledger, sink, MortalRunner if what == "half" else MemoryRunner)
        finally:
            path.write_text(kept(sink))
        (one,) = ledger.hydrations()
        phase = ledger.finish(one.id).phase
    found = {"verdict": verdict.value, "submitted": submitted, "phase": phase.value, "rows": sorted(sink.rows)}
    print("FOUND" + json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
