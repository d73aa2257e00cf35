"""Whether a second training is worth it, told by the first training alone."""
