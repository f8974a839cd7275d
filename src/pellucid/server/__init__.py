"""The HTTP server: the protocols that clients speak, in front of one engine.

A call's way: `http_protocol` bounds what a connection may send, `access` decides who may enter,
`endpoint` reads the body and sends the reply, a module of `protocols` turns the body into a
`GenerationRequest` and its tokens into a reply, and `generation` alone talks to the engine.
"""
