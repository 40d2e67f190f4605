"""A table of files as a target."""
