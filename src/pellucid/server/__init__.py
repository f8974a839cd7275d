"""The HTTP server: the protocols that clients speak, in front of one engine.

The path of a call: `http_protocol` limits what a connection may send, `access` checks the host and the API key,
`endpoint` reads the body and sends the reply, a module of `protocols` turns the body into a
`GenerationRequest` and tokens into a reply, and `generation` is the only module that calls the engine.
"""
