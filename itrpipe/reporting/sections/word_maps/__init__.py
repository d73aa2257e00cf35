"""Maps of words over photographs. A photograph is on the page once; the maps that lie over it refer to it."""
