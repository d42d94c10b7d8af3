"""Floor 2: the scenario file, strictly checked, resolved to models, machines and programs."""
