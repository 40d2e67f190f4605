"""A side's process: the order comes as the first line, then one command a line; a line of JSON answers each."""

import json
import os
import sys
import traceback
from typing import Any

from benchmarks.sides.side import Order, Side, read


def side(name: str, order: Order) -> Side:
    """Return the side of a name. Its libraries are loaded here, which no figure counts."""
    match name:
        case "raw" | "mysql-raw" | "kafka-raw" | "parquet-raw":
            from benchmarks.sides import raw

            return raw.SIDES[name](order)
        case "jdbc-default" | "jdbc-tuned" | "jdbc-overwrite" | "mysql-jdbc" | "parquet-jdbc" | "parquet-jdbc-zstd":
            from benchmarks.sides import jdbc

            return jdbc.SIDES[name](order)
        case "kafka-batch" | "kafka-stream":
            from benchmarks.sides import kafka

            return kafka.SIDES[name](order)
        case "dlt" | "ingestr" | "sling":
            from benchmarks.sides.peers import Peer

            return Peer(name, order)
        case "pgcopydb":
            from benchmarks.sides.pgcopydb import Pgcopydb

            return Pgcopydb(order)
    from benchmarks.sides.hydration import Hydration, declared

    return Hydration(order, declared(name, order))


def answer(one: Side, command: str) -> dict[str, Any]:
    """Carry a command out."""
    match command:
        case "open":
            one.open()
        case "run":
            return one.run()
        case "close":
            one.close()
    return {}


def main(name: str) -> None:
    """Serve until the commands end. What libraries print goes to the log, not among the answers."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    one = side(name, read(sys.stdin.readline()))
    print("{}", file=answers)
    for line in sys.stdin:
        try:
            found = answer(one, line.strip())
        except Exception as error:  # noqa: BLE001 (whatever it is, the benchmark reports it and continues)
            traceback.print_exc()
            first = next(iter(str(error).strip().splitlines()), "")
            found = {"error": f"{type(error).__name__}: {first}"}
        print(json.dumps(found), file=answers)


if __name__ == "__main__":
    main(sys.argv[1])
