"""Connectors that only tests have, in the form of the package's own."""
