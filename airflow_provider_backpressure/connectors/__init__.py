"""One folder for each system: what is read and written, on Airflow's side and inside Spark's tasks."""
