"""The tasks of a group of followed MySQL tables into tables of Spark's catalog."""

import sys
from dataclasses import dataclass
from pathlib import Path

from tests.support.lake_flow import LakeFlow
from tests.support.mysql_flow import MySQLFlow


@dataclass(frozen=True, kw_only=True)
class MySQLLakeFlow(LakeFlow, MySQLFlow):
    """One task group of tables of a MySQL database into those of a schema of the cluster's catalog."""


if __name__ == "__main__":
    MySQLLakeFlow.read(Path(sys.argv[1])).run()
