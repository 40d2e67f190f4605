"""Settings of every Spark session that we begin, over Spark Connect and by spark-submit."""

SETTINGS = {
    "spark.sql.execution.arrow.maxBytesPerBatch": "4m",
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.int96RebaseModeInWrite": "CORRECTED",
}
"""Of each session, whatever the server is set to. Wide rows would be handed to a task 64 MiB at a time. A MERGE that
passes over a file would leave out its rows for good. Delta's files would lose microseconds, or have old dates in the
Julian calendar, which only Spark reads back."""
TIME_ZONE, UTC = "spark.sql.session.timeZone", "UTC"
"""Setting of a session that a transform's days and hours go by, and what it is where no transform wants another one:
also a text of a time in a table goes by it."""
CONNECT_SETTINGS = {**SETTINGS, TIME_ZONE: UTC, "spark.connect.session.planCache.enabled": "false"}
"""Over Spark Connect. No plan is asked for twice, and each holds all of our code. Spark would keep sixteen of them for
each session, for as long as it lives, and that of a killed lane lives for another hour."""
APPLICATION_SETTINGS = {
    **SETTINGS,
    "spark.log.level": "WARN",
    "spark.port.maxRetries": "64",
    "spark.ui.showConsoleProgress": "false",
}
"""Properties of every application, where the connection sets none. Several run on a host, each with a page."""
