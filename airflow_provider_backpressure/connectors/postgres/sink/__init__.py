"""A PostgreSQL table as a target."""
