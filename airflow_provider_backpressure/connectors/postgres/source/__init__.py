"""A PostgreSQL table as a source."""
