"""Torchvision's Faster R-CNN."""
