"""`pellucid ablate`: the same work with and without each technique of the engine, measured in one run."""
