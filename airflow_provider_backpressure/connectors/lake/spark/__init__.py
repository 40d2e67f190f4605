"""Tables that the cluster's own connectors write, reached by SQL over Spark Connect."""
