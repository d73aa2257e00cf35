"""The detector of the embedded dataset."""
