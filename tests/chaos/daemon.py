"""Spark's own daemon of Python workers, with what each worker imports there before it forks them.

Every life of a lane has a session, and so workers, of its own; without this each of them imports for a second.
"""

import pandas
import psycopg
import pyarrow
import pyspark.worker
import xxhash
from pyspark.daemon import manager

PRELOADED = (pandas, psycopg, pyarrow, pyspark.worker, xxhash)

if __name__ == "__main__":
    manager()
