"""Judgements of people on which captions fit which images: kept, merged, summed up and put to use."""
