"""`python -m annotq.cli` is the program `annotq`."""

from annotq.cli.main import main

main()
