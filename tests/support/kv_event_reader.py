"""A reader of KV events as routers are: it knows labels, parents and tokens from messages alone."""

from typing import Any

import msgspec

Chain = tuple[int, ...]  # the tokens of a block and of all before it


class KVEventReader:
    """The blocks of one publisher.

    Attributes:
        chains: the text of each block, by its label.
        salts: by label.
        last_number: of the last batch; None: none has come.
    """

    def __init__(self) -> None:
        self.chains: dict[int, Chain] = {}
        self.salts: dict[int, str | None] = {}
        self.last_number: int | None = None

    def read(self, number: int, payload: bytes) -> None:
        """A batch, which must be the next one, or bring everything."""
        _, events, rank = msgspec.msgpack.decode(payload)
        clears = bool(events) and events[0]["type"] == "AllBlocksCleared"
        assert rank == 0
        assert clears or self.last_number is None or number == self.last_number + 1
        self.last_number = number
        for event in events:
            self._apply(event)

    def _apply(self, event: dict[str, Any]) -> None:
        match event["type"]:
            case "AllBlocksCleared":
                self.chains.clear()
                self.salts.clear()
            case "BlockRemoved":
                assert event["medium"] == "GPU"
                for label in event["block_hashes"]:
                    self.chains.pop(label, None)
                    self.salts.pop(label, None)
            case "BlockStored":
                self._store(event)
            case other:
                raise AssertionError(other)

    def _store(self, event: dict[str, Any]) -> None:
        size, parent = event["block_size"], event["parent_block_hash"]
        labels, token_ids = event["block_hashes"], event["token_ids"]
        assert event["medium"] == "GPU" and len(token_ids) == size * len(labels)
        for index, label in enumerate(labels):
            assert 0 <= label < 2**64
            if parent is not None and parent not in self.chains:
                return  # of a text whose beginning is not there
            before = () if parent is None else self.chains[parent]
            self.chains[label] = (*before, *token_ids[index * size : (index + 1) * size])
            self.salts[label] = event.get("cache_salt")
            parent = label
