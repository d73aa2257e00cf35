"""Every measured score, published ones below it."""
