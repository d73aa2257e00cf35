"""The local web application of `itrpipe serve`: pages for a browser of this machine, which nothing leaves."""
