"""Floor 1: the `Program` and `Timeline` types, their text, lint, builders and figures of merit."""
