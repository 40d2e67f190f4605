"""Limits, waits and retentions that hold unless a declaration, a person or a setting says otherwise: one place."""

# Ranges
MAX_ATTEMPTS = 3
"""How often a range is tried before it counts as failed."""
SHARED_JOB_ROWS = 20_000
SHARED_JOB_BYTES = 4 << 20
"""Most of a range that may share a Spark job with others: it would wait long for the slowest of them otherwise."""
RANGES_PER_SHARED_JOB = 32
"""Most ranges of one shared job: each waits for the slowest of its job."""
MAX_MAPPED_TASKS = 1024
"""Most ranges that become tasks of their own; Airflow's own limit of a mapped task."""

# Tables and hydrations
HYDRATIONS_AT_ONCE = 4
"""How many sources hydrate at once on a cluster."""
TABLES_PLANNED_AT_ONCE = 4
"""Tables of one task that are planned at once; each has a connection to source and target. More wait for Python."""
TABLES_VERIFIED_AT_ONCE = 8
"""Tables of one task that are verified at once; each has a connection to the target."""
LOG_RESTARTS = 3
"""How many times one try of the task may find a shared log lost, and begin it again with its tables."""

# Leases and signs of life, in seconds
LEASE_SECONDS = 60.0
"""How long a credit is held without a sign of life from its lane."""
RESERVATION_SECONDS = 300.0
"""How long a sensor's reservation waits for its submission; Airflow may take minutes to start the next task."""
TOKEN_SECONDS = 120.0
"""How long a token, or a place in the queue, is kept without a sign of life."""
HEARTBEAT_SECONDS = 30.0
"""Seconds between two heartbeats of a task."""

# Verdicts
SLOWER_SAMPLES = 3
"""Samples in a row, each slower than its source, until a hydration counts as not keeping up."""

# The source's disk
HEADROOM_HOURS = 2.0
"""Hours before the limit of a followed PostgreSQL table's log at which a warning begins; a budget may name others."""

# Settings of Airflow's section [backpressure], where it does not have them
INLINE_WAIT_SECONDS = 30.0
"""How long a lane waits at a closed gate before it defers."""
POLL_SECONDS = 0.5
"""Longest pause between two looks at the gate without push."""
SAMPLE_DAYS, SAMPLE_ROWS = 7.0, 100_000
"""For how long samples of a hydration are kept, and how many."""
HISTORY_DAYS, HISTORY_PLANS = 90.0, 20
"""For how long plans that no run needs any more are kept, and how many of them."""
GATE_CLOSED_SECONDS = 600.0
"""How long a gate may be closed before an event says so."""
