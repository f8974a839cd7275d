"""Load on a server: traffic, the client that sends it, and the percentiles and goodput that result."""
