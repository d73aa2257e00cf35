"""All results in one table, and what they allow to say."""
