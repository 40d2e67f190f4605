"""Names of datasets by OpenLineage's convention."""

import pytest

from airflow_provider_backpressure.openlineage import Dataset, dataset


@pytest.mark.parametrize(
    ("identity", "namespace", "name"),
    [
        ("postgres://shop:5432/shop/public.orders", "postgres://shop:5432", "shop.public.orders"),
        ("postgres://shop:5432/shop/public.orders#0123456789ab", "postgres://shop:5432", "shop.public.orders"),
        ('postgres://shop:5432/shop/"My Schema"."a""b"', "postgres://shop:5432", 'shop.My Schema.a"b'),
        ("mysql://erp:3306/erp.items", "mysql://erp:3306", "erp.items"),
        ("mysql://erp:3306/erp.`order``s`#0123456789ab", "mysql://erp:3306", "erp.order`s"),
        ("kafka://a:9092,b:9092/orders", "kafka://a:9092", "orders"),
        ("parquet:///lake/raw/orders", "file", "/lake/raw/orders"),
        ("parquet://bucket/raw/orders", "s3://bucket", "raw/orders"),
        ("delta://bucket/raw/orders", "s3://bucket", "raw/orders"),
        ("landed:delta:///lake/raw/orders", "file", "/lake/raw/orders"),
        ("iceberg://rest:8181/lake/raw.orders", "iceberg://rest:8181/lake", "raw.orders"),
        ("memory://source", "memory://source", ""),
    ],
)
def test_a_dataset_is_named_by_the_convention(identity: str, namespace: str, name: str):
    assert dataset(identity) == Dataset(namespace=namespace, name=name)
