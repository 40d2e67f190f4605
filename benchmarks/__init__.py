"""Measures this product and its peers side by side, on real servers that each run starts and ends itself."""
