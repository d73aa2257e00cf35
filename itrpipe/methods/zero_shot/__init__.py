"""A pretrained model as it is."""
