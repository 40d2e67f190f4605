"""Spark's own daemon of Python workers, with what each worker imports there before it forks them.

Workers are killed, and end after a minute without a job; without this each new one imports for a second.
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
