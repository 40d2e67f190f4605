"""What ``--help`` says of each command beside its arguments: what it does, examples, exit codes."""

from dataclasses import dataclass

WELL = "0 well, 1 the operation failed, 2 wrong use"


@dataclass(frozen=True, kw_only=True)
class Page:
    """One command's page. Lines are eighty characters wide at most."""

    about: str
    examples: tuple[str, ...]
    """Each without ``airflow backpressure``."""
    exits: str = WELL

    @property
    def epilog(self) -> str:
        """Return what stands below the arguments."""
        lines = "\n".join(f"  airflow backpressure {example}" for example in self.examples)
        return f"Examples:\n{lines}\n\nExit codes: {self.exits}."


GROUP = """\
Watch and steer hydrations: tables and topics that go into a sink range by range.
A hydration is named by its target's table (raw.orders), its id, or the
beginning of its id. Shells complete it once they were told to, as of Airflow's own
commands: eval "$(register-python-argcomplete airflow)".
Every command explains itself with --help."""

PAGES = {
    "plan": Page(
        about="""\
Checks source, executors and target of each hydration of a DAG, and shows what
its plan would be: rows, key, path, size and number of ranges. Nothing is changed.""",
        examples=("plan orders", "plan orders --task-group hydrate_lines --output json"),
    ),
    "reindex": Page(
        about="""\
Compares ledger and target of each hydration of a DAG. A ledger that was lost or
restored is rebuilt from the target's plan row and markers; the source's rows are
not read. A target that is older than the ledger is named, and left alone unless
--accept says that its word is to be taken.""",
        examples=("reindex orders", "reindex orders --accept"),
    ),
    "rehydrate": Page(
        about="""\
For a DAG that reads what was landed in a lake: checks that the lake is whole and
the target ready, and triggers the DAG so that it plans anew.""",
        examples=("rehydrate orders_from_lake",),
    ),
    "status": Page(
        about="""\
Shows where hydrations stand. Of one: progress with the time that is left, whether
it keeps up with its source, the executors' memory beside it, and the pipe with
the rates at its ends, the credits at its gate, and why that is closed. Of several:
a line each. Other outputs than table have more figures.
With --watch it is drawn anew at each change until Ctrl-C, or until the one that
was named is in steady state; into a file or pipe it writes a line for each change.""",
        examples=("status", "status raw.orders --watch", "status raw.orders --output json"),
    ),
    "sources": Page(
        about="""\
Shows each source of each DAG over all its tables: their numbers in sum, the lag
from what every table has reached, and the worst verdict of them.""",
        examples=("sources", "sources --output yaml"),
    ),
    "ranges": Page(
        about="""\
Shows the ranges of the current plan: bounds, state, rows, attempts, times and the
latest error.""",
        examples=("ranges raw.orders --state failed", "ranges 1f2e3d4c --output json"),
    ),
    "pause": Page(
        about="""\
Closes the gate by hand, with --all every gate there is. What is in flight goes on
to its commit; nothing more is admitted. It binds within a second.""",
        examples=('pause raw.orders --why "release night"', 'pause --all --why "the warehouse is on fire"'),
    ),
    "resume": Page(
        about="Takes the hand off again.",
        examples=("resume raw.orders", "resume --all"),
    ),
    "set": Page(
        about="""\
Changes what a running hydration may take. Credits and priority bind within a
second, the rows of a range with the next plan. 0 takes credits or rows back to
what the DAG declares.""",
        examples=('set raw.orders --credits 2 --why "office hours"', "set raw.orders --credits 0 --priority 10"),
    ),
    "queue": Page(
        about="""\
Shows which sources hydrate on each Spark cluster, which wait, and when each is
expected to start. With --concurrency and --cluster it changes how many hydrate
at once.""",
        examples=("queue", "queue --cluster spark_connect_default --concurrency 2"),
    ),
    "push": Page(
        about="""\
Shows how changes of gates are told to those that wait, and what all processes
counted of it in the last hour; turns either half off and on, in every process.""",
        examples=("push", 'push --publish off --why "noisy"', "push --publish on --output json"),
    ),
    "history": Page(
        about="Shows who steered what, when and why; the latest first.",
        examples=("history", "history raw.orders --output json"),
    ),
    "retry-range": Page(
        about="""\
Removes ranges that are wrong from the target and plans them again; one that failed
is planned again. The DAG's next run reads them.""",
        examples=('retry-range raw.orders 17 --why "was edited by hand"', "retry-range raw.orders 3 4 5"),
    ),
    "skip-range": Page(
        about="""\
Leaves planned or failed ranges out for good: the target refuses them from then on,
and the hydration is complete without them.""",
        examples=('skip-range raw.orders 17 --why "rows of a test"',),
    ),
    "prune": Page(
        about="""\
Removes from the ledger what is old and no run needs any more: ranges of earlier
plans, samples, and what nothing refers to. With --acts the history of who steered
what, too. The sinks are left alone.""",
        examples=("prune", "prune --older-than 90d --acts"),
    ),
    "uninstall": Page(
        about="""\
Lists what there is of this product outside of targets: slots and publications in
sources, plans and markers in sinks. With --yes it is removed, with --ledger the
ledger's tables as the last. The rows of the targets stay.""",
        examples=("uninstall", "uninstall --yes --ledger"),
        exits="0 well, 1 something could not be reached or the operation failed, 2 wrong use",
    ),
    "forget": Page(
        about="""\
Drops the slot and the publication that a hydration under catch_up has in the
source, and removes the hydration from the ledger. The target keeps its rows and
its fence. Refused while ranges are in flight.""",
        examples=("forget raw.orders",),
    ),
    "verify": Page(
        about="""\
Reads the target back and compares each committed range with its marker. The
executors do the work; the source is not read.""",
        examples=("verify raw.orders", "verify raw.orders --output json"),
        exits="0 equal, 1 a range differs or the operation failed, 2 wrong use",
    ),
    "probe": Page(
        about="""\
Copies a sample into a table beside the target, which is removed again, with 1, 2,
4, 8 ... credits and ranges of three sizes; shows rows a second and the bound of
each step, the knee and the verdict.""",
        examples=("probe raw.orders --seconds 30", "probe raw.orders --last"),
    ),
    "doctor": Page(
        about="""\
Looks at the ledger and its rights, each database, each Spark cluster, and whether
the executors reach the databases; says what to do about each problem. Without
connections it looks at those of the hydrations in the ledger.""",
        examples=("doctor", "doctor --conn-id shop_db --conn-id warehouse --spark-conn-id spark_connect_default"),
        exits="0 all is well, 1 there is a problem, 2 wrong use",
    ),
    "setup": Page(
        about="""\
On the host that has the metadata database: checks that the ledger's tables are
there, makes a role that may use them and nothing else, and stores the connection.
It does nothing where the connection works already.""",
        examples=("setup", "setup --role bp --overwrite"),
    ),
    "grants": Page(
        about="Prints the SQL that setup would run, for a database administrator.",
        examples=("grants", "grants --dialect mysql --schema airflow --role bp"),
    ),
}
"""By the command's name."""
