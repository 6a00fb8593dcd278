"""`python -m asynccfr`."""

from asynccfr.cli import main

main()
