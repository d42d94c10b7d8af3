"""Floor 0: what is scheduled, what it costs alone, and the rules of the serving engine."""
