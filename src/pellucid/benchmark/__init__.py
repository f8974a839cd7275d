"""How fast the engine is on this machine, and how much of the machine's ceilings that is."""
