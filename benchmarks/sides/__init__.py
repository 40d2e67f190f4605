"""The sides: each copies one table in its own way, in a process of its own."""
