"""Folders of Parquet files."""
