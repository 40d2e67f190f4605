"""MySQL's binary log, as a task reads it: packets, events, and rows as the lines of CSV that a statement would give."""
