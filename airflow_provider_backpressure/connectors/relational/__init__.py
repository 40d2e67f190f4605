"""What PostgreSQL and MySQL share."""
