"""What every artifact cost."""
