"""The bottom-up-attention detector."""
