"""Options of endpoints that lead to files, by the names that connections give them."""

REGION, ADDRESS = "region_name", "endpoint_url"
"""Of a bucket."""
CATALOG = "catalog_uri"
"""Address of a REST catalog."""
