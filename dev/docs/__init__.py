"""The documentation: what of it is made from the code, and the site that is built of it."""
