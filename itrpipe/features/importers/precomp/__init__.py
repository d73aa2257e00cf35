"""`*_precomp` folders."""
