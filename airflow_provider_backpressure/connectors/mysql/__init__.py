"""MySQL as both sides of the product speak it: connections, errors, names and bounds. Runs inside Spark's tasks too."""
