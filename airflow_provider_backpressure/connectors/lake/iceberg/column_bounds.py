"""Bounds of an Iceberg table's columns: only those are written, and trusted, that are true of a whole file.

Arrow writes no bound of a row group that is longer than 4096 bytes, which texts and bytes may be. pyiceberg then takes
the bounds of the file's other row groups for those of the file, and readers pass over rows that it has.
"""

import json
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow.parquet as pq
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import parquet_files_to_data_files, parquet_path_to_id_mapping
from pyiceberg.manifest import DataFile, FileFormat
from pyiceberg.table import Table, TableProperties
from pyiceberg.table.metadata import TableMetadata

from airflow_provider_backpressure.connectors.lake.iceberg.data_files import check_ids
from airflow_provider_backpressure.connectors.lake.tasks.parquet_writer import NULLS

_WITHOUT_BOUNDS = {TableProperties.DEFAULT_WRITE_METRICS_MODE: "counts"}


def describe_files(io: FileIO, metadata: TableMetadata, paths: Iterable[str]) -> Iterator[DataFile]:
    """Yield files as a manifest names them, without bounds that leave out some of their rows.

    ``RangeFailed`` where the table's columns have changed since a file was written.
    """
    ids = parquet_path_to_id_mapping(metadata.schema())
    for path in paths:
        footer = _read_footer(io, path)
        check_ids(footer.schema.to_arrow_schema(), metadata.schema(), path)
        try:
            (file,) = parquet_files_to_data_files(io, metadata, iter([path]))
        except UnicodeEncodeError:
            # The library cuts a bound, and raises its last character by one: U+D7FF has none behind it.
            bare = metadata.model_copy(update={"properties": {**metadata.properties, **_WITHOUT_BOUNDS}})
            (file,) = parquet_files_to_data_files(io, bare, iter([path]))
        for name in _find_unbounded(footer):
            for bounds in (file.lower_bounds, file.upper_bounds):
                bounds.pop(ids[name], None)
        for name, number in json.loads((footer.metadata or {}).get(NULLS, b"{}")).items():
            file.null_value_counts[ids[name]] = number
        yield file


def may_hold(table: Table, file: DataFile, name: str, least: Any, greatest: Any) -> bool:
    """Whether a file may have values of a column between these two, by its own footer.

    Bounds in the manifest are not asked: earlier releases wrote wrong ones of texts and bytes.
    """
    column = table.schema().find_field(name).field_id
    known = {each.field_id for schema in table.metadata.schemas for each in schema.fields if each.name == name}
    if known != {column} or file.file_format != FileFormat.PARQUET:
        return True
    found = [chunk for chunk in _list_chunks(_read_footer(table.io, file.file_path)) if chunk.path_in_schema == name]
    return not found or any(_may_hold(chunk, least, greatest) for chunk in found)


def _may_hold(chunk: Any, least: Any, greatest: Any) -> bool:
    if not _is_bounded(chunk):
        return True
    first, last = chunk.statistics.min, chunk.statistics.max
    if first is None:
        return False
    return type(first) is not type(least) or (first <= greatest and last >= least)


def _find_unbounded(footer: pq.FileMetaData) -> set[str]:
    """Return the columns of which a row group has values and no bounds."""
    return {chunk.path_in_schema for chunk in _list_chunks(footer) if not _is_bounded(chunk)}


def _is_bounded(chunk: Any) -> bool:
    """Whether the bounds of a column's part in a row group hold for all its values; NULLs need none."""
    found = chunk.statistics
    if found is None:
        return False
    if not found.has_min_max:
        return bool(found.has_null_count and found.null_count == chunk.num_values)
    # Older versions of Arrow (17) return an empty text for a bound that is not there. As the least value it is true.
    return found.physical_type != "BYTE_ARRAY" or len(found.max) > 0


def _list_chunks(footer: pq.FileMetaData) -> list[Any]:
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    return [group.column(number) for group in groups for number in range(group.num_columns)]


def _read_footer(io: FileIO, path: str) -> pq.FileMetaData:
    with io.new_input(path).open() as stream:
        return pq.read_metadata(stream)
