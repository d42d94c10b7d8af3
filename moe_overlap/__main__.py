"""`python -m moe_overlap`."""

from moe_overlap.cli import main

main()
