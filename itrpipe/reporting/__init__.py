"""Reports over evaluated runs: tables, plots and one HTML page. Everything shown is read from artifacts."""
