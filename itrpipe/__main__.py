"""`python -m itrpipe` is the command `itrpipe`."""

from itrpipe.cli import main

main()
