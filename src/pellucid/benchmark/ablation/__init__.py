"""What each idea of the engine is worth: the same work with it and without, measured in one run."""
