"""Models of the hub: which file a short name stands for, what the cache holds, and its deletion."""
