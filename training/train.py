"""Trains the target, or with a teacher the draft. Run again to resume; with fewer tokens, to end early.

python training/train.py target --run RUN --tokenizer TOKENIZER --tokens 20000000
python training/train.py draft --run RUN --tokenizer TOKENIZER --tokens 6000000 --teacher TARGET_RUN
"""

import argparse
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import copying_heads
import torch
import torch.nn.functional as F
from data import batch, load_tokenizer
from torch import Tensor

from model import DRAFT, TARGET, Llama

SEED = 2026
CHECKPOINT_SECONDS = 240
LOG_STEPS, VALIDATE_STEPS = 20, 200
PEAK_LR = {"target": 4e-3, "draft": 3e-3}
WARMUP, DECAY = 0.01, 0.18


class Phase(NamedTuple):
    until: float  # share of all tokens
    rows: int
    length: int
    drills: int  # weight of copying drills in the mixture
    lr: float  # share of the peak


# Small steps while everything is new, drills for copying, and long rows at the end, where the learning rate falls and
# recall over the whole context is learned.
PHASES = {
    "target": [
        Phase(0.32, 8, 512, 0, 1.0),
        Phase(0.41, 8, 512, 60, 1.0),
        Phase(0.49, 16, 256, 80, 0.35),
        Phase(0.63, 16, 512, 10, 0.35),
        Phase(0.68, 16, 256, 60, 0.35),
        Phase(1 - DECAY, 16, 512, 20, 0.35),
        Phase(1.0, 2, 2048, 10, 0.35),
    ],
    "draft": [Phase(1 - DECAY, 16, 512, 5, 1.0), Phase(1.0, 4, 2048, 5, 1.0)],
}
COPYING_HEADS_AT = 0.63  # the target had not learned to copy by then: see copying_heads.py


def phase_at(kind: str, progress: float) -> Phase:
    return next(phase for phase in PHASES[kind] if progress < phase.until)


def lr_scale(progress: float) -> float:
    """Warm up, stay, then fall in a straight line: a run can be ended early by jumping into the fall."""
    return min(1.0, progress / WARMUP + 0.02, max(0.0, (1 - progress) / DECAY) + 0.01)


def optimizers(model: Llama, peak_lr: float) -> list[torch.optim.Optimizer]:
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    others = [p for name, p in model.named_parameters() if p.ndim != 2 or "embed" in name]
    return [
        torch.optim.Muon(matrices, lr=peak_lr, weight_decay=0.05, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, lr=peak_lr, betas=(0.9, 0.95), weight_decay=0.0),
    ]


def cross_entropy(model: Llama, ids: Tensor) -> Tensor:
    return F.cross_entropy(model(ids[:, :-1]).flatten(0, 1).float(), ids[:, 1:].flatten())


def distillation(teacher: Llama) -> Callable[[Llama, Tensor], Tensor]:
    """Mostly the teacher's whole distribution, a little of the text itself."""

    def loss(model: Llama, ids: Tensor) -> Tensor:
        logits = model(ids[:, :-1]).flatten(0, 1).float()
        with torch.no_grad():
            wanted = teacher(ids[:, :-1]).flatten(0, 1).float().log_softmax(-1)
        divergence = F.kl_div(
            logits.log_softmax(-1), wanted, reduction="batchmean", log_target=True
        )
        return 0.9 * divergence + 0.1 * F.cross_entropy(logits, ids[:, 1:].flatten())

    return loss


def load_model(kind: str, run: Path) -> Llama:
    model = Llama(TARGET if kind == "target" else DRAFT)
    model.load_state_dict(torch.load(run / "checkpoint.pt")["model"])
    return model


def save(path: Path, state: dict) -> None:
    torch.save(state, path.with_suffix(".new"))
    path.with_suffix(".new").replace(path)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=["target", "draft"])
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--tokens", type=int, required=True)
    parser.add_argument("--teacher", type=Path)
    args = parser.parse_args()

    torch.manual_seed(SEED)
    tokenizer = load_tokenizer(args.tokenizer)
    model = Llama(TARGET if args.kind == "target" else DRAFT)
    opts = optimizers(model, PEAK_LR[args.kind])
    loss_of = cross_entropy
    if args.teacher:
        loss_of = distillation(load_model("target", args.teacher).requires_grad_(False))
    compiled = torch.compile(loss_of, dynamic=False)
    validation = batch(tokenizer, SEED, 0, 8, 512, held_out=True)

    step = done = 0
    can_copy = args.kind == "draft"
    seconds = 0.0
    args.run.mkdir(parents=True, exist_ok=True)
    checkpoint = args.run / "checkpoint.pt"
    if checkpoint.exists():
        state = torch.load(checkpoint)
        model.load_state_dict(state["model"])
        for opt, opt_state in zip(opts, state["optimizers"], strict=True):
            opt.load_state_dict(opt_state)
        step, done, seconds = state["step"], state["tokens"], state["seconds"]
        can_copy = state.get("can_copy", can_copy)
        print(f"resumed at step {step}, {done} tokens", flush=True)

    def snapshot() -> None:
        optimizer_states = [opt.state_dict() for opt in opts]
        counters = {"step": step, "tokens": done, "seconds": seconds, "can_copy": can_copy}
        save(checkpoint, {"model": model.state_dict(), "optimizers": optimizer_states, **counters})

    stopping = threading.Event()
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signal_number, lambda *_: stopping.set())

    last_save = last_log = time.perf_counter()
    logged_tokens = done
    while done < args.tokens and not stopping.is_set():
        began = time.perf_counter()
        progress = done / args.tokens
        phase = phase_at(args.kind, progress)
        if not can_copy and progress >= COPYING_HEADS_AT:
            copying_heads.install(model, batch(tokenizer, SEED, step, 8, 256, 60)[:, :-1], SEED)
            can_copy = True
        for opt in opts:
            for group in opt.param_groups:
                group["lr"] = PEAK_LR[args.kind] * lr_scale(progress) * phase.lr
        ids = batch(tokenizer, SEED, step, phase.rows, phase.length, phase.drills)
        with torch.autocast("cpu", torch.bfloat16):
            loss = compiled(model, ids)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for opt in opts:
            opt.step()
            opt.zero_grad()
        step += 1
        done += phase.rows * phase.length
        now = time.perf_counter()
        seconds += now - began
        if step % LOG_STEPS == 0:
            speed = (done - logged_tokens) / (now - last_log)
            print(
                f"step {step} tokens {done} loss {loss.item():.4f} lr {lr_scale(progress):.3f}"
                f" tokens/s {speed:.0f} hours {seconds / 3600:.3f}",
                flush=True,
            )
            last_log, logged_tokens = now, done
        if step % VALIDATE_STEPS == 0:
            with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
                print(
                    f"step {step} held-out loss {cross_entropy(model, validation).item():.4f}",
                    flush=True,
                )
        if now - last_save > CHECKPOINT_SECONDS:
            snapshot()
            last_save = now
    snapshot()
    print(f"stopped: {done} tokens in {seconds / 3600:.2f} hours", flush=True)


if __name__ == "__main__":
    main()
