"""Vision networks: transformers and convolutional ones."""
