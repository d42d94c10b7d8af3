"""Floor 3: `simulate(program, machine)`: a program becomes a predicted timeline."""
