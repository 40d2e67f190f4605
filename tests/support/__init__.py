"""What several suites need to set the stage."""
