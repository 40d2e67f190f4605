"""What runs inside Spark's tasks for Kafka."""
