"""A MySQL table as a source."""
