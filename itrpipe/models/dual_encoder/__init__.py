"""The dual encoder."""
