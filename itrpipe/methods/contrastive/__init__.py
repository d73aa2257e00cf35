"""Contrastive training with any negatives."""
