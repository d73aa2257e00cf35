"""Losses, one file per paper: pure functions of score tensors that know nothing of models."""
