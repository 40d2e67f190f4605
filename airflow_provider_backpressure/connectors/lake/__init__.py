"""Tables that are files (Parquet, Delta, Iceberg), as sinks and the tasks that write into them see them."""
