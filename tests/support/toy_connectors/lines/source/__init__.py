"""The declaration and what it opens."""
