"""A connector of a kind that the package does not have: the lines of a text file."""
