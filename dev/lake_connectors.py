"""Settings of a Spark server with the connectors of Delta and Iceberg, whose tables are in a folder."""

from pathlib import Path

from dev.downloads import Downloads, default_folder

SMALL = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m",
}
"""Settings of a server for tables of some hundred rows: to compile each statement takes longer than to run it."""


EXTENSIONS = "spark.sql.extensions"
ICEBERG = {
    EXTENSIONS: "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
    "spark.sql.catalog.lake.type": "hadoop",
}
"""Iceberg's connector and a catalog named ``lake``, without the place of its tables."""
WAREHOUSE = "spark.sql.catalog.lake.warehouse"


def make_iceberg_conf(folder: Path) -> dict[str, str]:
    """Return the settings of a server that has Iceberg's connector alone. The tables are in a folder."""
    return {**ICEBERG, WAREHOUSE: str(folder), **_make_class_path("jars-iceberg")}


def make_connector_conf(folder: Path, *, survives: bool = False) -> dict[str, str]:
    """Return the settings. Delta's tables are in ``spark_catalog.default``, Iceberg's in ``lake.raw``.

    ``survives``: whether the catalog of Delta's tables outlives the server; it costs the start some seconds.
    """
    (folder / "iceberg" / "raw").mkdir(parents=True, exist_ok=True)
    conf = {
        **ICEBERG,
        EXTENSIONS: f"io.delta.sql.DeltaSparkSessionExtension,{ICEBERG[EXTENSIONS]}",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        WAREHOUSE: str(folder / "iceberg"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        # Two cores: what Delta reads of its own log is small.
        "spark.sql.shuffle.partitions": "2",
        "spark.databricks.delta.snapshotPartitions": "2",
        **_make_class_path("jars-delta", "jars-iceberg"),
    }
    if survives:
        metastore = f"jdbc:derby:;databaseName={folder / 'metastore'};create=true"
        conf |= {"spark.sql.catalogImplementation": "hive", "spark.hadoop.javax.jdo.option.ConnectionURL": metastore}
    return conf


def _make_class_path(*groups: str) -> dict[str, str]:
    """Return the settings that load connectors. As jars of a session they would be copied before the server answers."""
    downloads = Downloads(folder=default_folder())
    path = ":".join(str(file) for group in groups for file in downloads.group(group))
    return {"spark.driver.extraClassPath": path, "spark.executor.extraClassPath": path}
