"""TSV files of bottom-up attention."""
