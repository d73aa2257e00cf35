"""itrpipe: staged, disk-backed training of image-text retrieval models with better negatives."""

__version__ = "0.1.0"
