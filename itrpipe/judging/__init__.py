"""Judges of negatives: how likely a caption is right for an image that it was not written for."""
