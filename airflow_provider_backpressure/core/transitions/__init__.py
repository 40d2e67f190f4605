"""What every ledger decides and learns in the same way, a room for each thing that is decided about.

Pure functions from values to values, taken under the hydration's lock: the ledger in memory and the one on tables
differ in where values are kept, never in what becomes of them.
"""
