"""What runs inside Spark's tasks for tables of files."""
