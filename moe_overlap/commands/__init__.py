"""One module per command; see `moe_overlap.cli`."""
