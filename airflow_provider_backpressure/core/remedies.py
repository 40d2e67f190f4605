"""What sentences name as the way out, in the same words everywhere."""

RESTART = 'trigger the DAG with {"backpressure": "restart"} to plan again'
