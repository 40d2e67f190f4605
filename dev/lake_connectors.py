"""Settings of a Spark server with the connectors of Delta and Iceberg, whose tables are in a folder."""

from pathlib import Path

from dev.downloads import Downloads, default_folder

SMALL = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
}
"""Settings of a server for tables of some hundred rows: to compile each statement takes longer than to run it."""


def make_connector_conf(folder: Path, *, survives: bool = False) -> dict[str, str]:
    """Return the settings. Delta's tables are in ``spark_catalog.default``, Iceberg's in ``lake.raw``.

    ``survives``: whether the catalog of Delta's tables outlives the server; it costs the start some seconds.
    """
    (folder / "iceberg" / "raw").mkdir(parents=True, exist_ok=True)
    extensions = (
        "io.delta.sql.DeltaSparkSessionExtension",
        "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    )
    # As jars of the session they would be copied, 60 MB of them, before the server answers.
    downloads = Downloads(folder=default_folder())
    jars = [str(file) for group in ("jars-delta", "jars-iceberg") for file in downloads.group(group)]
    conf = {
        "spark.sql.extensions": ",".join(extensions),
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.lake.type": "hadoop",
        "spark.sql.catalog.lake.warehouse": str(folder / "iceberg"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        # Two cores: what Delta reads of its own log is small.
        "spark.sql.shuffle.partitions": "2",
        "spark.databricks.delta.snapshotPartitions": "2",
        "spark.driver.extraClassPath": ":".join(jars),
        "spark.executor.extraClassPath": ":".join(jars),
    }
    if survives:
        metastore = f"jdbc:derby:;databaseName={folder / 'metastore'};create=true"
        conf |= {"spark.sql.catalogImplementation": "hive", "spark.hadoop.javax.jdo.option.ConnectionURL": metastore}
    return conf
