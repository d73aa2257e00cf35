"""Sources of negatives by objectives and weights."""
