"""The server's configuration, which does not change after start: address, access, limits."""

from dataclasses import dataclass, field, fields
from ipaddress import ip_address

from pellucid.server.api_keys import ApiKeys


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of what callers may ask for and of what the server holds. An error names the limit.

    Args:
        max_connections: open connections.
        max_connections_per_client: of these, from one address (of IPv6: from one network of 64 bits).
        max_header_bytes: request line and headers of one call.
        header_seconds: time in which they must arrive.
        max_body_bytes: body of one call.
        body_seconds: time in which it must arrive.
        write_seconds: time in which a client must take some of what was sent to it.
        max_prompts: prompts of one call.
        max_completions: completions of one call: its prompts times n, or times best_of.
        max_unfinished_completions: completions that run or wait, of all callers together.
        max_unfinished_tokens: prompt tokens of all completions that run or wait.
        max_strings: stop strings of one call, and as many bad words.
        max_string_chars: length of each of them.
        max_logit_bias: entries of a logit_bias, and of allowed_token_ids.
        max_held_body_bytes: bodies that are read or wait to be encoded, of all callers together; the first 64 KiB
            of each do not count. One caller can have half.
        max_waiting_texts: large bodies, and texts of routes that only turn text into tokens and back, that wait to
            be read, of all callers together.
        text_workers: threads for them.
        max_waiting_looks: calls that compute the logits or the attention of a token again, of all callers together.
        max_event_readers: streams of events, of all callers together.

    Raises:
        ValueError: a limit is not above 0.
    """

    max_connections: int = 4096
    max_connections_per_client: int = 1024
    max_header_bytes: int = 32 << 10
    header_seconds: float = 20.0
    max_body_bytes: int = 16 << 20
    body_seconds: float = 60.0
    write_seconds: float = 300.0
    max_prompts: int = 256
    max_completions: int = 256
    max_unfinished_completions: int = 1024
    max_unfinished_tokens: int = 4 << 20
    max_strings: int = 32
    max_string_chars: int = 1024
    max_logit_bias: int = 1024
    max_held_body_bytes: int = 128 << 20
    max_waiting_texts: int = 256
    text_workers: int = 2
    max_waiting_looks: int = 32
    max_event_readers: int = 64

    def __post_init__(self) -> None:
        for limit in fields(self):
            value = getattr(self, limit.name)
            if not value > 0:
                raise ValueError(f"{limit.name}={value!r}: must be above 0")


@dataclass(frozen=True, kw_only=True)
class KVEventsConfig:
    """Where the changes of the prefix index are published. Who reaches these addresses can read the tokens of all
    prompts and answers.

    Args:
        endpoint: ZeroMQ's address for readers, as "tcp://*:5557".
        replay_endpoint: where readers ask for what they missed; None: they cannot.
        topic: what the messages begin with; llm-d reads "kv@POD@MODEL".

    Raises:
        ValueError: an address is not tcp:// or ipc://.
    """

    endpoint: str
    replay_endpoint: str | None = None
    topic: str = ""

    def __post_init__(self) -> None:
        for name, address in (
            ("kv_events", self.endpoint),
            ("kv_events_replay", self.replay_endpoint),
        ):
            if address is not None and not address.startswith(("tcp://", "ipc://")):
                raise ValueError(
                    f"{name}={address!r}: must be tcp://ADDRESS:PORT or ipc://PATH; * stands for all addresses"
                )


@dataclass(frozen=True, kw_only=True)
class ServerConfig:
    """The settings of a server.

    Args:
        host: address to listen on.
        port: 0 takes a free one.
        model_names: names by which clients may call the model; replies use the first one. `*` stands
            for any characters. Left out, the model's own name.
        api_keys: the keys that are accepted; without keys everyone who reaches the port may do everything.
        isolate_keys: callers with different keys learn nothing of each other's requests: no ids, no counts, and no
            events but through an admin's key.
        allow_anyone: listen on an address that other machines reach although there are no keys.
        allowed_hosts: values of the Host header that are accepted besides those of this machine.
        allowed_origins: web pages that may call from a browser, as "https://chat.example".
        keep_billing_block: show the model the block of Claude Code's system prompt that changes with every
            request, so that no prompt of it is found in the cache.
        otlp_endpoint: address of an OpenTelemetry collector that gets spans and durations; None: they are not made.
        kv_events: where the changes of the prefix index are published; None: nowhere.
        keepalive_seconds: seconds without a frame after which a stream gets a keepalive.
        stall_seconds: time without a step, while requests are unfinished, after which /health fails.
        limits: see `Limits`.

    Raises:
        ValueError: names the field, the value and what is allowed.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    model_names: tuple[str, ...] = ()
    api_keys: ApiKeys = field(default_factory=ApiKeys)
    isolate_keys: bool = False
    allow_anyone: bool = False
    allowed_hosts: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    keep_billing_block: bool = False
    otlp_endpoint: str | None = None
    kv_events: KVEventsConfig | None = None
    keepalive_seconds: float = 15.0
    stall_seconds: float = 120.0
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        if not 0 <= self.port < 2**16:
            raise ValueError(f"port={self.port!r}: must be in 0..65535")
        if not all(self.model_names):
            raise ValueError(f"model_names={self.model_names!r}: must be non-empty names")
        if not self.keepalive_seconds > 0 or not self.stall_seconds > 0:
            raise ValueError("keepalive_seconds and stall_seconds must be above 0")
        if self.otlp_endpoint is not None and not self.otlp_endpoint.startswith(
            ("http://", "https://")
        ):
            raise ValueError(
                f"otlp_endpoint={self.otlp_endpoint!r}: must be http://... or https://..."
            )
        for origin in self.allowed_origins:
            if "://" not in origin or origin.endswith("/"):
                raise ValueError(
                    f"allowed_origins={origin!r}: must be scheme://host[:port] without a path"
                )
        if self.isolate_keys and not self.api_keys:
            raise ValueError("isolate_keys=True: needs API keys (--api-keys)")
        if not self.is_loopback and not self.api_keys and not self.allow_anyone:
            raise ValueError(
                f"host={self.host!r}: other machines reach this address, and there are no API keys;"
                " give keys, or set allow_anyone (--allow-anyone)"
            )

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the address."""
        if self.host == "localhost":
            return True
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return False
