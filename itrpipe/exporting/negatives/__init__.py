"""What `itrpipe export-negatives` writes: mined negatives in the files of other trainers.

Shapes: N images, T captions, S written sentences, n mined negatives of a row, m written ones.
"""
