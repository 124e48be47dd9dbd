"""Results as a table, CSV, plots and one HTML page; each reads the same JSON-ready report."""
