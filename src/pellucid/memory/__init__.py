"""How much memory there is, and what an engine plans to take of it."""
