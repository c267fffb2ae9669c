"""Train clover-tiny: two single-threaded processes, resumable, the same command again goes on.

python -m clover_train.train --run NAME --steps N
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import Tensor

from clover_train import checkpoint, vocabulary
from clover_train.config import Config
from clover_train.fast import Products
from clover_train.feed import held_out_batches, training_batch
from clover_train.layout import Batch
from clover_train.mixture import KINDS
from clover_train.model import Model
from clover_train.muon import Muon
from clover_train.quant import Linear, Rounding, Stack

MUON_LR, ADAM_LR = 0.02, 3e-3
BALANCE = 0.01
DRILLS = (50, 500)
LOGS = Path(__file__).parents[1] / "runs"


def rate(step: int, steps: int, flat: int) -> float:
    """Return the learning rate's factor: short warm-up, `flat` steps of 1, then linear to 3 %.

    Up to step `flat` it does not depend on `steps`, so a run may be given more or fewer until then.
    """
    warm = min(1.0, (step + 1) / 60)
    return warm * (1.0 if step < flat else 1 - 0.97 * (step - flat) / (steps - flat))


def drills(step: int) -> float:
    """Return the share of copying drills of a run from scratch: early, falling to none.

    Copying is what every other task waits for, and alone it is learned much faster.
    """
    first, last = DRILLS
    return 0.6 * (last - step) / (last - first) if first <= step < last else 0.0


def losses(model: Model, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """Return causal, masked and balance losses."""
    h, balance = model(batch)
    rows = torch.cat([batch.causal_rows, batch.masked_rows])
    targets = torch.cat([batch.causal_targets, batch.masked_targets])
    each = F.cross_entropy(model.logits(h.index_select(0, rows)), targets, reduction="none")
    n = len(batch.causal_rows)
    return each[:n].mean(), each[n:].mean(), balance


@torch.no_grad()
def check(model: Model, batches: list[Batch]) -> dict[str, list[float]]:
    """Return by kind: answers that greedy decoding gets right, rows right in the first pass."""
    out = {}
    for kind, batch in zip(KINDS, batches, strict=True):
        h, _ = model(batch)
        causal = model.logits(h[batch.causal_rows]).argmax(-1) == batch.causal_targets
        masked = model.logits(h[batch.masked_rows]).argmax(-1) == batch.masked_targets
        # rows of one answer follow each other
        starts = torch.cat([torch.tensor([True]), batch.causal_rows.diff() != 1])
        answer = starts.cumsum(0) - 1
        wrong = torch.zeros(int(answer[-1]) + 1).index_add(0, answer, (~causal).float())
        out[kind.name] = [
            round((wrong == 0).float().mean().item(), 3),
            round(masked.float().mean().item(), 3),
        ]
    return out


def parameters(model: Model) -> tuple[list[Tensor], list[Tensor]]:
    """Return (matrices for Muon, all others for AdamW)."""
    matrices = [
        m.weight for n, m in model.named_modules() if isinstance(m, (Linear, Stack)) and n != "head"
    ]
    taken = {id(p) for p in matrices}
    return matrices, [p for p in model.parameters() if id(p) not in taken]


def average(params: list[Tensor], world: int) -> None:
    """Average gradients over the processes, in one message."""
    if world == 1:
        return
    flat = torch.cat([p.grad.reshape(-1) for p in params])
    dist.all_reduce(flat)
    flat /= world
    at = 0
    for p in params:
        p.grad.copy_(flat[at : at + p.numel()].view_as(p))
        at += p.numel()


def work(rank: int, world: int, a: argparse.Namespace) -> None:
    """One process of the training."""
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    Products.in_bf16 = True
    folder = Path(a.state) / a.run
    # a process that was started in the background ignores it, and would outlive its parent
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    lock = None
    if rank == 0:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / "lock").open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sys.exit(f"{folder}: another process trains this run")
    if world > 1:
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(a.port)}
        # a paused process must not end the others
        dist.init_process_group("gloo", rank=rank, world_size=world, timeout=timedelta(hours=24))
    torch.manual_seed(a.seed)
    tokenizer = vocabulary.build()
    model = Model(Config())
    matrices, others = parameters(model)
    muon = Muon(matrices, MUON_LR, 0.95, 0.02)
    adam = torch.optim.AdamW(others, ADAM_LR, betas=(0.9, 0.95), weight_decay=0.0)
    first, spent = 0, 0.0
    resume = folder / "resume.pt"
    start_from = resume if resume.exists() else Path(a.init) if a.init else None
    if start_from and start_from.is_dir():
        model.load_state_dict(checkpoint.read(start_from).state_dict())
    elif start_from:
        saved = torch.load(start_from, weights_only=True)
        model.load_state_dict(saved["model"])
        muon.load_state_dict(saved["muon"])
        adam.load_state_dict(saved["adam"])
        if start_from == resume:
            first, spent = saved["step"], saved["seconds"]
    held_out = held_out_batches(tokenizer, a.check) if rank == 0 and a.check else []
    log = None
    if rank == 0:
        LOGS.mkdir(exist_ok=True)
        log = (LOGS / f"{a.run}.log").open("a")
        settings = {k: v for k, v in vars(a).items() if k != "state"}
        count = sum(p.numel() for p in model.parameters())
        _write(log, {"parameters": count, "from_step": first, **settings})
    params = list(model.parameters())
    rows = torch.zeros(())
    began = time.time()
    totals = torch.zeros(4)
    end = min(a.steps, a.until or a.steps)
    for step in range(first, end):
        Rounding.is_on = step >= a.steps * (1 - a.rounding)
        factor = a.peak * rate(step, a.steps, a.flat)
        for group in muon.param_groups:
            group["lr"] = MUON_LR * factor
        for group in adam.param_groups:
            group["lr"] = ADAM_LR * factor
        seed = f"{a.seed}-{rank}-{step}"
        batch = training_batch(tokenizer, seed, a.rows, a.copies, 0.0 if a.init else drills(step))
        causal, masked, balance = losses(model, batch)
        for p in params:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad.zero_()
        (causal + masked + BALANCE * balance).backward()
        average(params, world)
        muon.step()
        adam.step()
        n = float(len(batch.ids))
        totals += torch.tensor([causal.item(), masked.item(), balance.item(), 1.0])
        rows += n * world
        last = step + 1 == end
        if rank == 0 and (last or (step + 1) % 25 == 0):
            mean = (totals[:3] / totals[3]).tolist()
            seconds = spent + time.time() - began
            entry = {
                "step": step + 1,
                "causal": round(mean[0], 4),
                "masked": round(mean[1], 4),
                "balance": round(mean[2], 3),
                "lr": round(factor, 4),
                "rows_per_second": round(rows.item() / (time.time() - began)),
                "seconds": round(seconds),
            }
            if held_out and (last or (step + 1) % a.every == 0):
                entry["held_out"] = check(model, held_out)
            _write(log, entry)
            totals.zero_()
        if rank == 0 and (last or (step + 1) % 50 == 0):
            state = {
                "model": model.state_dict(),
                "muon": muon.state_dict(),
                "adam": adam.state_dict(),
                "step": step + 1,
                "seconds": spent + time.time() - began,
            }
            torch.save(state, folder / "resume.tmp")
            (folder / "resume.tmp").replace(resume)
            if last or (step + 1) % a.every == 0:
                export(model, tokenizer, folder / "checkpoint")
    if world > 1:
        dist.barrier()
        dist.destroy_process_group()
    if lock:
        lock.close()


def export(model: Model, tokenizer, folder: Path) -> None:
    """Write the checkpoint folder."""
    vocabulary.save(tokenizer, folder)
    names = (*vocabulary.SPECIAL, *vocabulary.TAGS)
    checkpoint.write(model, folder, {n: tokenizer.token_to_id(n) for n in names})


def _write(log, entry: dict) -> None:
    log.write(json.dumps(entry) + "\n")
    log.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", required=True, help="name of the run: its log and its state")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--until", type=int, default=0, help="stop before this step")
    parser.add_argument("--rows", type=int, default=2048, help="rows a process and step")
    parser.add_argument("--copies", type=int, default=2, help="noisy copies of each block")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--flat", type=int, default=3000, help="steps at full rate")
    parser.add_argument("--peak", type=float, default=1.0, help="factor on both learning rates")
    parser.add_argument("--rounding", type=float, default=0.1, help="last share with q4 rounding")
    parser.add_argument("--check", type=int, default=16, help="held-out samples a kind")
    parser.add_argument("--every", type=int, default=400, help="steps between checks")
    parser.add_argument("--init", default="", help="resume.pt or checkpoint folder to go on from")
    parser.add_argument("--state", default="/tmp/clover-train", help="folder of resume states")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--port", type=int, default=29531)
    a = parser.parse_args()
    if a.processes == 1:
        work(0, 1, a)
    else:
        mp.spawn(work, (a.processes, a), nprocs=a.processes)


if __name__ == "__main__":
    main()
