"""Every run against its first training."""
