"""The servers that a session can start: one noun per module."""
