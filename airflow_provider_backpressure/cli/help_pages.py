"""Help pages of the commands: description, examples, exit codes."""

from dataclasses import dataclass

WELL = "0 success, 1 failure, 2 usage error"


@dataclass(frozen=True, kw_only=True)
class Page:
    """One command's page. Lines are eighty characters wide at most."""

    about: str
    examples: tuple[str, ...]
    """Each without ``airflow backpressure``."""
    exits: str = WELL

    @property
    def epilog(self) -> str:
        """Return the text below the arguments."""
        lines = "\n".join(f"  airflow backpressure {example}" for example in self.examples)
        return f"Examples:\n{lines}\n\nExit codes: {self.exits}."


GROUP_PAGE = """\
Watch and control hydrations: copies of tables and topics into a sink, range by range.
Name a hydration by its target's table (raw.orders), its id, or the beginning of
its id. For completion in the shell: eval "$(register-python-argcomplete airflow)".
Every command has a page under --help."""

PAGES = {
    "plan": Page(
        about="""\
Checks source, executors and target of each hydration of a DAG, and shows its
plan: rows, key, path, size and number of ranges. Nothing is changed.""",
        examples=("plan orders", "plan orders --task-group hydrate_lines --output json"),
    ),
    "reindex": Page(
        about="""\
Compares ledger and target of each hydration of a DAG. Rebuilds a ledger that was
lost or restored from the target's plan row and markers, without reading the rows
of the source. A target that is older than the ledger is named and left unchanged,
unless --accept is given.""",
        examples=("reindex orders", "reindex orders --accept"),
    ),
    "rehydrate": Page(
        about="""\
For a DAG that reads files landed in a lake: checks that the lake is complete and
the target ready, and triggers the DAG with a new plan.""",
        examples=("rehydrate orders_from_lake",),
    ),
    "status": Page(
        about="""\
Shows the state of hydrations. For one: progress and time left, whether it keeps
up with its source, executor memory, rates, credits, and why the gate is closed.
For several: one line each. Outputs other than table have more figures.
With --watch it refreshes at each change until Ctrl-C, or until the named hydration
is in steady state; into a file or pipe it writes a line for each change.""",
        examples=("status", "status raw.orders --watch", "status raw.orders --output json"),
    ),
    "sources": Page(
        about="""\
Shows each source of each DAG over all its tables: summed numbers, the lag of the
slowest table, and the worst verdict.""",
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
Pauses one hydration, or all with --all. Ranges in flight continue to their commit;
no more are admitted. Takes effect within a second.""",
        examples=('pause raw.orders --why "release night"', 'pause --all --why "the warehouse is on fire"'),
    ),
    "resume": Page(
        about="Resumes one paused hydration, or all with --all.",
        examples=("resume raw.orders", "resume --all"),
    ),
    "set": Page(
        about="""\
Changes credits, range size or priority. Credits and priority take effect within a
second; larger ranges are cut when they are admitted. 0 restores the DAG's value.""",
        examples=('set raw.orders --credits 2 --why "office hours"', "set raw.orders --credits 0 --priority 10"),
    ),
    "queue": Page(
        about="""\
Shows which sources hydrate on each Spark cluster, which wait, and their expected
start. With --concurrency and --cluster it changes how many hydrate at once.""",
        examples=("queue", "queue --cluster spark_connect_default --concurrency 2"),
    ),
    "push": Page(
        about="""\
Shows how waiting tasks receive changes of gates, and the counts of all processes
in the last hour. Switches publishing and subscribing, in every process.""",
        examples=("push", 'push --publish off --why "noisy"', "push --publish on --output json"),
    ),
    "history": Page(
        about="Shows manual changes: who, what, when and why; the latest first.",
        examples=("history", "history raw.orders --output json"),
    ),
    "retry-range": Page(
        about="""\
Removes wrong ranges from the target and plans them again; a failed range is planned
again. The DAG's next run reads them.""",
        examples=('retry-range raw.orders 17 --why "was edited manually"', "retry-range raw.orders 3 4 5"),
    ),
    "skip-range": Page(
        about="""\
Skips planned or failed ranges permanently: the target refuses them from then on,
and the hydration is complete without them.""",
        examples=('skip-range raw.orders 17 --why "rows of a test"',),
    ),
    "change-owner": Page(
        about="""\
Lets a DAG own what another DAG has hydrated, as after the DAG was renamed. The new
DAG continues from what is committed, and runs of the old one are refused. Refused
while a run of the old DAG works on it. History keeps who did it, when and why.""",
        examples=('change-owner shop shop_v2 --why "renamed"', "change-owner shop orders --hydration raw.orders"),
    ),
    "prune": Page(
        about="""\
Deletes old data that no run needs from the ledger: ranges of earlier plans,
samples, and unreferenced rows. With --acts also the history of manual changes.
The end of a run does this for its own hydration. Sinks are not changed.""",
        examples=("prune", "prune --older-than 90d --acts"),
    ),
    "uninstall": Page(
        about="""\
Lists everything that this product created: slots and publications in sources,
plans and markers in sinks. With --yes removes it, with --ledger the ledger's tables
too. The rows of the targets stay.""",
        examples=("uninstall", "uninstall --yes --ledger"),
        exits="0 success, 1 something could not be reached or failed, 2 usage error",
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
Reads the target and compares each committed range with its marker, on the
executors. With --full the source is read again too: a table that is followed is
compared by value while changes come. A snapshot of a table cannot be read again.""",
        examples=("verify raw.orders", "verify raw.orders --full --output json"),
        exits="0 equal, 1 a range differs or the operation failed, 2 usage error",
    ),
    "probe": Page(
        about="""\
Copies a sample into a temporary table beside the target with 1, 2, 4, 8 ... credits
and three range sizes. Shows rows per second and the bottleneck of each step, the
knee and the verdict.""",
        examples=("probe raw.orders --seconds 30", "probe raw.orders --last"),
    ),
    "doctor": Page(
        about="""\
Checks the ledger and its rights, each database, each Spark cluster, whether
Spark's own pages show a login, and whether the executors reach the databases.
Each problem comes with its remedy. Without connections it checks those of the
hydrations in the ledger.""",
        examples=("doctor", "doctor --conn-id shop_db --conn-id warehouse --spark-conn-id spark_connect_default"),
        exits="0 no problem, 1 a problem, 2 usage error",
    ),
    "setup": Page(
        about="""\
On the host with the metadata database: checks that the ledger's tables exist,
creates a role that may use only them, and stores the connection. Does nothing if
the connection already works.""",
        examples=("setup", "setup --role bp --overwrite"),
    ),
    "grants": Page(
        about="Prints the SQL that setup would run, for a database administrator.",
        examples=("grants", "grants --dialect mysql --schema airflow --role bp"),
    ),
}
"""By the command's name."""
