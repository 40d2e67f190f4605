"""Unit tests of what both sides say to MySQL."""
