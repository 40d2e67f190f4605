"""The versions this package runs with, tried one by one: `make matrix`."""
