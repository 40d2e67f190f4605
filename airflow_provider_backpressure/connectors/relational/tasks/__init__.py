"""What tasks of PostgreSQL and MySQL share."""
