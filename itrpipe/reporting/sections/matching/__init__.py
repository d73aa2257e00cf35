"""How often runs tell pairs from their negatives."""
