"""Floor 4: timelines as HTML, Perfetto traces and terminal drawings."""
