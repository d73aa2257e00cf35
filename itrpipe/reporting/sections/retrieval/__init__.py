"""What the shown run finds for some queries."""
