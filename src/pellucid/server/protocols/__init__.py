"""One module for each protocol: from its bodies to requests, from tokens to its replies."""
