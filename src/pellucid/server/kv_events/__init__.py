"""KV events: tells routers which blocks are in the prefix index, in vLLM's wire format."""
