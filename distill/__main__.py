"""`python -m distill`."""

from distill.cli import main

main()
