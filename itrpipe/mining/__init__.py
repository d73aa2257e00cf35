"""Mining of offline hard negatives: the best wrong candidates of every image and caption over a whole split."""
