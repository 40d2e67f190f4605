"""What every room that speaks to PostgreSQL shares: connecting, errors, names, catalogue and key order.

Spark's executors use it too, so it needs nothing but psycopg, the core and the exceptions.
"""
