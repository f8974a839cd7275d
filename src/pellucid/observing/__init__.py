"""What the engine lets one see: events, ledgers, recordings and their exports."""
