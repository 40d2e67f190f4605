"""What was landed in a lake as a source."""
