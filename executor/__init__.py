"""Floor 3: `execute(program, kernels)`: the same program becomes a measured timeline."""
