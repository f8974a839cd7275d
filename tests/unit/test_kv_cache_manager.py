"""Tables, copies and contents of blocks, without a scheduler. A block holds four tokens."""

from pellucid.scheduling.block_ops import CopyBlock, LoadBlock, SaveBlock
from pellucid.scheduling.block_pool import BlockPool
from pellucid.scheduling.kv_cache_manager import KVCacheManager
from pellucid.scheduling.prefix_match import MissReason, PrefixMatch, PrefixMiss
from pellucid.scheduling.request import Request
from support.scheduling import BLOCK_SIZE, make_request


def make_manager(num_blocks: int = 16, **knobs: object) -> KVCacheManager:
    return KVCacheManager(BlockPool(num_blocks), BLOCK_SIZE, **knobs)


def compute(manager: KVCacheManager, request: Request, num_tokens: int) -> None:
    """What a step does to a request's blocks."""
    assert manager.allocate(request, num_tokens)
    before, request.num_computed_tokens = request.num_computed_tokens, num_tokens
    manager.seal(request, before)
    manager.check_integrity()


def begin(manager: KVCacheManager, request: Request) -> PrefixMatch:
    """What admission does."""
    request.num_computed_tokens = manager.match_prefix(request)
    assert manager.num_lacking_blocks(request, request.num_tokens) == 0
    match = manager.admit(request)
    request.num_computed_tokens = match.num_tokens
    manager.check_integrity()
    return match


def end(manager: KVCacheManager, *requests: Request) -> None:
    for request in requests:
        manager.forget(request)
    manager.check_integrity()


class Store:
    def __init__(self, *token_ids: tuple[int, ...]) -> None:
        self.token_ids = set(token_ids)
        self.asked: list[tuple[int, ...]] = []

    def find(self, block_hash: bytes, token_ids: tuple[int, ...]) -> object | None:
        self.asked.append(token_ids)
        return f"payload of {token_ids}" if token_ids in self.token_ids else None


def test_whoever_writes_into_a_shared_block_gets_a_copy_and_the_last_one_does_not() -> None:
    manager = make_manager()
    parent, child = make_request("parent", 20), make_request("child", 20)
    compute(manager, parent, 6)
    manager.fork(parent, child)
    child.num_computed_tokens = 6
    assert manager.block_ids(parent) == manager.block_ids(child) == (0, 1)
    compute(manager, child, 7)
    assert manager.take_block_ops() == (CopyBlock(1, 2),)
    assert manager.block_ids(child) == (0, 2)
    compute(manager, parent, 7)
    assert manager.take_block_ops() == ()
    assert manager.block_ids(parent) == (0, 1)


def test_a_copy_needs_a_block_too() -> None:
    manager = make_manager(num_blocks=2)
    parent, child = make_request("parent", 20), make_request("child", 20)
    compute(manager, parent, 6)
    manager.fork(parent, child)
    child.num_computed_tokens = 6
    assert manager.num_lacking_blocks(child, 7) == 1
    assert not manager.allocate(child, 7)
    assert manager.num_exclusive_blocks(parent) == 0
    end(manager, parent)
    assert manager.allocate(child, 7)  # it is alone now, and writes in place
    assert manager.take_block_ops() == ()


def test_a_block_that_is_rolled_back_into_can_no_longer_be_found() -> None:
    manager = make_manager()
    request = make_request("a", 12)
    compute(manager, request, 9)
    manager.roll_back(request, 6)
    request.num_computed_tokens = 6
    assert manager.block_ids(request) == (0, 1)
    assert begin(manager, make_request("b", 12)).num_tokens == 8
    compute(manager, request, 7)  # its second block is shared now: it gets a copy
    assert manager.take_block_ops() == (CopyBlock(1, 3),)
    other = make_request("c", 12, cache_salt=b"own")
    compute(manager, other, 9)
    manager.roll_back(other, 6)
    other.num_computed_tokens = 6
    compute(manager, other, 7)  # nobody else has it: it is written in place, and not found
    assert manager.take_block_ops() == ()
    assert begin(manager, make_request("d", 12, cache_salt=b"own")).num_tokens == 4


def test_shared_blocks_do_not_count_as_given_back() -> None:
    manager = make_manager()
    parent, child = make_request("parent", 20), make_request("child", 20)
    compute(manager, parent, 12)
    manager.fork(parent, child)
    child.num_computed_tokens = 12
    compute(manager, child, 16)
    assert manager.give_back(child, 2) == 1
    child.num_computed_tokens = 0
    assert manager.num_blocks(child) == 0
    manager.check_integrity()


def test_a_group_is_reassigned_all_at_once() -> None:
    manager = make_manager()
    members = [make_request(name, 20) for name in "abc"]
    for member in members:
        compute(manager, member, 6)
    a, b, _ = (manager.block_ids(member) for member in members)
    manager.reassign(members, [1, 0, 0])
    assert [manager.block_ids(member) for member in members] == [b, a, a]
    manager.check_integrity()
    assert manager.block_pool.num_free_blocks == 16 - len({*a, *b})


def test_what_the_pool_lost_comes_from_the_store_and_the_rest_from_the_pool() -> None:
    store = Store((0, 1, 2, 3), (4, 5, 6, 7))
    manager = make_manager(prefix_store=store)
    first = make_request("first", 20)
    compute(manager, first, 18)
    assert [op.token_ids[0] for op in manager.take_block_ops() if isinstance(op, SaveBlock)] == [
        0,
        4,
        8,
        12,
    ]
    # The two first blocks are lost, as if others had needed them.
    for block in manager._tables["first"].blocks[:2]:
        manager.block_pool.unseal(block)
    again = make_request("again", 20)
    match = begin(manager, again)
    assert (match.num_tokens, match.num_loaded_tokens) == (16, 8)
    ids = manager.block_ids(again)
    assert manager.take_block_ops() == (
        LoadBlock(ids[0], "payload of (0, 1, 2, 3)"),
        LoadBlock(ids[1], "payload of (4, 5, 6, 7)"),
    )
    assert ids[2:4] == manager.block_ids(first)[2:4]
    compute(manager, again, 20)
    # What was loaded is not saved again, and can be found in the pool.
    assert [type(op) for op in manager.take_block_ops()] == [SaveBlock]
    assert begin(manager, make_request("third", 20)).num_loaded_tokens == 0


def test_the_store_is_asked_for_full_blocks_before_the_last_token_only() -> None:
    store = Store()
    manager = make_manager(prefix_store=store)
    begin(manager, make_request("a", 8))
    assert store.asked == [(0, 1, 2, 3)]
    begin(manager, make_request("b", 3))
    begin(manager, make_request("c", 8, prompt_logprobs=0))
    assert store.asked == [(0, 1, 2, 3)]


def test_wasted_slots_are_those_of_the_last_blocks() -> None:
    manager = make_manager()
    parent, child = make_request("parent", 20), make_request("child", 20)
    compute(manager, parent, 6)
    assert manager.num_wasted_slots() == 2
    manager.fork(parent, child)
    child.num_computed_tokens = 6
    assert manager.num_wasted_slots() == 2  # one block, though two have it
    compute(manager, child, 7)
    assert manager.num_wasted_slots() == 2 + 1


# ---- why a prefix is not found


def test_never_seen() -> None:
    manager = make_manager()
    assert begin(manager, make_request("a", 9)).miss == PrefixMiss(MissReason.NEVER_SEEN, 0)


def test_all_was_found() -> None:
    manager = make_manager()
    first = make_request("a", 9)
    begin(manager, first)
    compute(manager, first, 9)
    assert begin(manager, make_request("b", 9)) == PrefixMatch(8, 0, None)


def test_what_is_left_is_shorter_than_a_block() -> None:
    manager = make_manager()
    first = make_request("a", 11)
    begin(manager, first)
    compute(manager, first, 11)
    match = begin(manager, make_request("b", 11))
    assert match == PrefixMatch(8, 0, PrefixMiss(MissReason.PARTIAL_BLOCK, 8))


def test_another_text_goes_on_differently() -> None:
    manager = make_manager()
    for name, last in (("far", 9), ("near", 6)):
        request = make_request(name, prompt=[0, 1, 2, 3, 4, 5, last, last, 8])
        begin(manager, request)
        compute(manager, request, 9)
        end(manager, request)
    miss = begin(manager, make_request("c", prompt=[0, 1, 2, 3, 4, 5, 6, 7, 8])).miss
    assert miss == PrefixMiss(MissReason.DIFFERS, 4, "near", 7, (7, 6))
    # Also at the first token of a block; but texts that have nothing in common do not differ.
    miss = begin(manager, make_request("d", prompt=[0, 1, 2, 3, 9, 9, 9, 9, 9])).miss
    assert (miss.reason, miss.differs_at_token, miss.differing_token_ids[0]) == (
        MissReason.DIFFERS,
        4,
        9,
    )
    assert begin(manager, make_request("e", prompt=[7] * 9)).miss.reason is MissReason.NEVER_SEEN


def test_evicted_and_how_long_ago() -> None:
    manager = make_manager(num_blocks=5)
    first = make_request("a", 9)
    begin(manager, first)
    compute(manager, first, 9)
    end(manager, first)
    other = make_request("b", prompt=range(50, 69))
    begin(manager, other)
    end(manager, other)
    miss = begin(manager, make_request("c", 9)).miss
    assert miss == PrefixMiss(MissReason.EVICTED, 0, num_evicted_since=0)


def test_the_memory_of_what_was_evicted_is_bounded() -> None:
    manager = make_manager(num_blocks=4)
    for number in range(200):
        request = make_request(f"{number}", prompt=range(number * 20, number * 20 + 16))
        begin(manager, request)
        compute(manager, request, 16)
        end(manager, request)
    assert len(manager.block_pool.index._evicted) == 16


def test_it_is_there_under_another_salt() -> None:
    manager = make_manager()
    first = make_request("a", 9, cache_salt=b"theirs")
    begin(manager, first)
    compute(manager, first, 9)
    match = begin(manager, make_request("b", 9, cache_salt=b"mine"))
    assert match == PrefixMatch(0, 0, PrefixMiss(MissReason.SALT, 0))


def test_disabled() -> None:
    manager = make_manager()
    first = make_request("a", 9)
    begin(manager, first)
    compute(manager, first, 9)
    match = begin(manager, make_request("b", 9, prompt_logprobs=1))
    assert match == PrefixMatch(0, 0, PrefixMiss(MissReason.DISABLED, 0))
    manager = make_manager(enable_prefix_caching=False)
    assert begin(manager, make_request("c", 9)).miss == PrefixMiss(MissReason.DISABLED, 0)
