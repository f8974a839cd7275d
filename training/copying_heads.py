"""Gives a model an induction circuit: one head attends to the previous token, others to what followed an earlier copy of the current one.

Such induction heads form by themselves, but only after more tokens than two processor cores can read in an evening.
Here they are written into the weights by least squares, on the activations of a real batch; training then refines them.
"""

import torch
from torch import Tensor

from model import Llama

CODE = 16  # a token's code: as many numbers as the slow half of a head's rotary pairs can carry
LOOKS_BACK = 1
FINDERS = {2: 0, 3: 1, 4: 0}  # layer that looks the token up: which of the two codes it compares
PEAK = 40.0
SHARPNESS = 1.4
WRITE, FOUND = (
    1.0,
    1.5,
)  # size of what the heads write, relative to what is usual in the residual stream


def fit(inputs: Tensor, wanted: Tensor) -> Tensor:
    """Ridge regression without a bias: the matrix that maps `inputs` to `wanted`."""
    gram = inputs.T @ inputs
    ridge = 1e-4 * gram.diagonal().mean() * torch.eye(len(gram))
    return torch.linalg.solve(gram + ridge, inputs.T @ wanted).T


def activations(model: Llama, ids: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """Per layer, the residual stream that enters it and what its attention reads."""
    stream: list[Tensor] = []
    read: list[Tensor] = []
    hooks = []
    for layer in model.layers:
        hooks.append(layer.register_forward_pre_hook(lambda _, args: stream.append(args[0])))
        hooks.append(
            layer.self_attn.register_forward_pre_hook(lambda _, args: read.append(args[0]))
        )
    model(ids)
    for hook in hooks:
        hook.remove()
    return stream, read


def token_codes(model: Llama, ids: Tensor, seed: int) -> Tensor:
    """V x 2 CODE: of what LOOKS_BACK reads, the part that says most about the token and least about its context."""
    alone = torch.arange(model.shape.vocab_size)
    alone = torch.stack([torch.zeros_like(alone), alone], dim=1)
    by_token = activations(model, alone)[1][LOOKS_BACK][:, 1]
    read = activations(model, ids)[1][LOOKS_BACK].flatten(0, 1)
    context = read - by_token[ids.flatten()]
    within = context.T @ context / len(context)
    within += 0.01 * within.diagonal().mean() * torch.eye(len(within))
    centred = by_token - by_token.mean(0)
    values, vectors = torch.linalg.eigh(within)
    whiten = vectors * values.rsqrt()
    between = whiten.T @ (centred.T @ centred) @ whiten
    best = whiten @ torch.linalg.eigh(between).eigenvectors[:, -2 * CODE :]
    codes = centred @ best
    generator = torch.Generator().manual_seed(seed)
    mix = torch.linalg.qr(torch.randn(2 * CODE, 2 * CODE, generator=generator)).Q
    return codes / codes.std(0) @ mix


def quiet_directions(stream: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The directions of the residual stream in which least is written, and the size of a usual one."""
    residual = stream.flatten(0, 1)
    values, vectors = torch.linalg.eigh(residual.T @ residual / len(residual))
    return vectors[:, :count], values.median().sqrt()


@torch.no_grad()
def install(model: Llama, ids: Tensor, seed: int) -> None:
    head = model.shape.head_dim
    pairs = head // 2
    frequencies = model.shape.rope_theta ** (-torch.arange(pairs) / pairs)
    for index in (LOOKS_BACK, *FINDERS):
        model.layers[index].self_attn.o_proj.weight[:, : 2 * head] = 0
    codes = token_codes(model, ids, seed)
    now = codes[ids]
    before = torch.roll(now, 1, dims=1)
    before[:, 0] = 0

    # Look one token back: a query and a key that are the same everywhere, one position apart.
    attention = model.layers[LOOKS_BACK].self_attn
    stream, read = activations(model, ids)
    inputs = read[LOOKS_BACK].flatten(0, 1)
    one = fit(inputs, torch.ones(len(inputs), 1))
    weight = 2.0 * 0.7 ** torch.arange(pairs)  # the fast pairs tell one token from the next
    back = torch.stack([weight * frequencies.cos(), -weight * frequencies.sin()]).flatten()
    here = torch.stack([weight, torch.zeros(pairs)]).flatten()
    attention.q_proj.weight[:head] = PEAK**0.5 * back[:, None] @ one
    attention.k_proj.weight[:head] = PEAK**0.5 * here[:, None] @ one
    attention.v_proj.weight[:head] = fit(inputs, now.flatten(0, 1))
    directions, size = quiet_directions(stream[LOOKS_BACK + 1], head)
    attention.o_proj.weight[:, :head] = WRITE * size * directions

    # Find: compare this token's code with every earlier token's code of its own predecessor.
    slow = [*range(pairs - CODE // 2, pairs), *range(head - CODE // 2, head)]
    embeddings = model.embed_tokens.weight
    spread = torch.linalg.eigh(embeddings.T @ embeddings).eigenvectors.flip(1)
    for order, (index, which) in enumerate(FINDERS.items()):
        part = slice(which * CODE, (which + 1) * CODE)
        attention = model.layers[index].self_attn
        stream, read = activations(model, ids)
        inputs = read[index].flatten(0, 1)
        scale = (SHARPNESS * head**0.5) ** 0.5
        attention.q_proj.weight[:head] = 0
        attention.k_proj.weight[:head] = 0
        attention.q_proj.weight[slow] = scale * fit(inputs, now[..., part].flatten(0, 1))
        attention.k_proj.weight[slow] = scale * fit(inputs, before[..., part].flatten(0, 1))
        directions = spread[:, 1 + order * head : 1 + (order + 1) * head]
        wanted = embeddings[ids].flatten(0, 1) @ directions
        attention.v_proj.weight[:head] = fit(inputs, wanted / wanted.std(0))
        size = FOUND * quiet_directions(stream[index], 1)[1]
        attention.o_proj.weight[:, :head] = size * directions * (wanted.std(0) / wanted.std())
