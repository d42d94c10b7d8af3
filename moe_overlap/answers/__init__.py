"""What a comparison is asked for beyond step times: capacity, latency limits, and what would flip it."""
