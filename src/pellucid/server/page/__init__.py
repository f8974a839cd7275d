"""What the live page runs and looks at: comparisons, loads, forks, estimates, and views into the engine."""
