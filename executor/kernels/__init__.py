"""Our own GPU kernels in Triton, each file one idea with a plain torch reference beside it."""
