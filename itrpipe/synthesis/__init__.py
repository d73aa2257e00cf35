"""Negative sentences for whole training sets: written by a trained model, or by rules."""
