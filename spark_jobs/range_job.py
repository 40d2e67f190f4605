"""The application of one range, or of what is asked about one: ``range_job.py REQUEST LOGINS [ANSWER]``."""

import sys

from airflow_provider_backpressure.spark.submitted_application import main

if __name__ == "__main__":
    main(sys.argv[1:])
