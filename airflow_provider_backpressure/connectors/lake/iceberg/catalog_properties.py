"""Catalogs by their properties: what a declaration says, and what only a connection may."""

from collections.abc import Mapping
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from airflow_provider_backpressure.connectors.lake.storage import check_characters
from airflow_provider_backpressure.core.endpoints import CATALOG, REGION, S3_ADDRESS, Endpoint
from airflow_provider_backpressure.exceptions import InvalidDeclaration

IMPLEMENTATION = ("py-io-impl", "pyiceberg.io.pyarrow.PyArrowFileIO")
"""How files are reached unless a declaration says otherwise."""
HADOOP = "hadoop"
_SECRET = (
    *("password", "passwd", "secret", "token", "credential", "connection-string"),
    *("access-key", "account-key", "api-key", "authorization", "cookie"),
)


def check_catalog(catalog: Mapping[str, str]) -> dict[str, str]:
    """Return a catalog's properties; :class:`InvalidDeclaration` for one that is no text, or a secret."""
    for name, value in catalog.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise InvalidDeclaration(f"IcebergSink.catalog maps texts to texts; {name!r} is something else.")
        if _is_secret(name.lower()) or _carries_secret(value):
            raise InvalidDeclaration(f"IcebergSink.catalog must not hold secrets: put {name} into its connection.")
    if "/" in (warehouse := catalog.get("warehouse", "")):
        check_characters(warehouse, "The warehouse of IcebergSink.catalog", "[#?]")
    if catalog.get("type") == HADOOP:
        from airflow_provider_backpressure.connectors.lake.iceberg.hadoop_catalog import check_warehouse

        check_warehouse(warehouse)
    return dict(catalog)


def _is_secret(name: str) -> bool:
    return any(word in name for word in _SECRET)


def _carries_secret(value: str) -> bool:
    """Whether an address has a password in it, or among its parameters."""
    parts = urlsplit(value)
    return bool(parts.password) or any(_is_secret(name.lower()) for name, _ in parse_qsl(parts.query))


def to_pyiceberg_properties(catalog: Mapping[str, str]) -> dict[str, str]:
    """Return the properties as pyiceberg takes them, which has no Hadoop catalog of its own."""
    if catalog.get("type") != HADOOP:
        return dict(catalog)
    from airflow_provider_backpressure.connectors.lake.iceberg.hadoop_catalog import IMPLEMENTATION as OURS

    return {**{name: value for name, value in catalog.items() if name != "type"}, "py-catalog-impl": OURS}


def catalog_properties(endpoint: Endpoint) -> dict[str, str]:
    """Return what a connection adds: a REST catalog, a catalog in PostgreSQL, or the login of a bucket."""
    if uri := endpoint.options.get(CATALOG):
        login = (
            {"credential": f"{endpoint.user}:{endpoint.password}"} if endpoint.user else {"token": endpoint.password}
        )
        return {"type": "rest", "uri": uri, **(login if endpoint.password else {})}
    if endpoint.host:
        login_text = f"{quote(endpoint.user, safe='')}:{quote(endpoint.password, safe='')}"
        options = f"?{urlencode(endpoint.options)}" if endpoint.options else ""
        return {"type": "sql", "uri": f"postgresql+psycopg://{login_text}@{endpoint.address}{options}"}
    found = {"s3.region": endpoint.options.get(REGION), "s3.endpoint": endpoint.options.get(S3_ADDRESS)}
    if endpoint.user:
        found |= {"s3.access-key-id": endpoint.user, "s3.secret-access-key": endpoint.password}
    return {name: value for name, value in found.items() if value}


def list_modules(catalog: Mapping[str, str], endpoint: Endpoint) -> tuple[str, ...]:
    """Return what a task imports to reach a catalog."""
    if endpoint.host:
        return ("pyiceberg", "sqlalchemy", "psycopg")
    return ("pyiceberg", "sqlalchemy") if catalog.get("type") == "sql" else ("pyiceberg",)


def place_of(catalog: Mapping[str, str], endpoint: Endpoint) -> str:
    """Return what identifies a catalog, without secrets."""
    uri = endpoint.options.get(CATALOG) or (endpoint.address if endpoint.host else catalog.get("uri"))
    place = uri or catalog.get("warehouse") or catalog.get("type", "")
    return f"{place.rpartition('://')[2].strip('/')}/{catalog.get('name', 'default')}"
