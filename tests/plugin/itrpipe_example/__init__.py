"""A method and a backbone for itrpipe."""
