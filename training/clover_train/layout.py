"""A batch as chunks of 32 rows: clean causal chunks, then noisy blocks over their states.

A sequence is its left-padded prompt and response, cut so that a noisy block's start is a chunk's
start. Every noisy block points to the clean chunk that holds its true tokens: the state before
that chunk is the committed state which the block is previewed over.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import torch
from torch import Tensor

CHUNK = 32


@dataclass
class Tokens:
    """Ids of one example: prompt, response with its end token."""

    kind: int
    prompt: list[int]
    response: list[int]


@dataclass
class AttentionGroup:
    """Sequences of similar length: rows [n, L] (the flat row, or N for none), mask [n, 1, L, L]."""

    rows: Tensor
    mask: Tensor


@dataclass
class Batch:
    """N = (clean + noisy) * 32 rows, clean chunks first.

    ids, positions, valid [N]; scan [sequences, chunks] flat clean chunk of each sequence's chunk,
    or `clean` for none; is_first [clean]; parent [noisy] the clean chunk of the same tokens;
    width [noisy] real rows of a block; inverse [N] where a row stands in the groups, joined.
    causal_rows/targets, masked_rows/targets: rows whose logits are scored.
    """

    clean: int
    noisy: int
    ids: Tensor
    positions: Tensor
    valid: Tensor
    scan: Tensor
    scan_inverse: Tensor
    is_first: Tensor
    parent: Tensor
    width: Tensor
    groups: list[AttentionGroup]
    inverse: Tensor
    causal_rows: Tensor
    causal_targets: Tensor
    masked_rows: Tensor
    masked_targets: Tensor
    masked_kinds: Tensor


@dataclass
class Piece:
    """One example laid out: chunks of (ids, positions, valid), and its noisy blocks."""

    prompt_chunks: int
    blocks: int
    clean_ids: list[int]
    clean_positions: list[int]
    pad: int
    causal: list[tuple[int, int]]
    noisy: list[tuple[int, list[int], list[bool], int]]
    kind: int


def lay_out(example: Tokens, rng: Random, mask_id: int, fill_id: int, copies: int) -> Piece:
    """Choose the block starts and masks of one example.

    Three in four start at the prompt's end, as decoding does; the others anywhere in the response,
    half of these 16 wide with the first row known and the others masked, as self-speculation does.
    """
    prompt, response = example.prompt, example.response
    offset = 0 if rng.random() < 0.75 else rng.randrange(len(response))
    drafts = offset > 0 and rng.random() < 0.5
    head = len(prompt) + offset
    pad = -head % CHUNK
    blocks = -(-(len(response) - offset) // CHUNK)
    fill = blocks * CHUNK - (len(response) - offset)
    ids = [fill_id] * pad + prompt + response + [fill_id] * fill
    positions = [0] * pad + list(range(len(ids) - pad))
    first = pad + len(prompt) - 1
    causal = [(first + i, t) for i, t in enumerate(response)]
    noisy = []
    start = pad + head
    for block in range(blocks):
        truth = ids[start + block * CHUNK :][:CHUNK]
        for copy in range(copies):
            if drafts:
                is_masked, width = [False] + [True] * (CHUNK - 1), CHUNK // 2
            elif copy == 0 and rng.random() < 0.65:
                is_masked, width = [True] * CHUNK, CHUNK
            else:
                rate = rng.random()
                is_masked, width = [rng.random() < rate for _ in range(CHUNK)], CHUNK
            shown = [mask_id if m else t for m, t in zip(is_masked, truth, strict=True)]
            noisy.append((block, shown, is_masked, width))
    return Piece((pad + head) // CHUNK, blocks, ids, positions, pad, causal, noisy, example.kind)


def collate(pieces: list[Piece], groups: int = 3) -> Batch:
    """Join laid-out examples into one batch; attention runs in `groups` of similar length."""
    pieces = sorted(pieces, key=lambda p: len(p.clean_ids) + CHUNK * len(p.noisy))
    clean = sum(len(p.clean_ids) for p in pieces) // CHUNK
    noisy = sum(len(p.noisy) for p in pieces)
    # a few sizes only: products of a new shape are slow the first time
    spare = -(clean + noisy) % 4
    used, clean = clean, clean + spare
    N = (clean + noisy) * CHUNK
    ids: list[int] = []
    positions: list[int] = []
    noisy_ids: list[int] = []
    noisy_positions: list[int] = []
    valid = torch.ones(N, dtype=torch.bool)
    valid[used * CHUNK : clean * CHUNK] = False
    is_first = torch.zeros(clean, dtype=torch.bool)
    is_first[used:] = True
    longest = max(p.prompt_chunks + p.blocks for p in pieces)
    scan = torch.full((len(pieces), longest), clean)
    parent, width = [], []
    causal_rows, causal_targets, masked_rows, masked_targets, masked_kinds = [], [], [], [], []
    members: list[tuple[int, int, list[tuple[int, int, int]]]] = []
    for s, p in enumerate(pieces):
        base = len(ids)
        first = base // CHUNK
        count = len(p.clean_ids) // CHUNK
        is_first[first] = True
        scan[s, :count] = torch.arange(first, first + count)
        ids += p.clean_ids
        positions += p.clean_positions
        valid[base : base + p.pad] = False
        causal_rows += [base + r for r, _ in p.causal]
        causal_targets += [t for _, t in p.causal]
        own = []
        for block, shown, is_masked, w in p.noisy:
            row = clean * CHUNK + len(noisy_ids)
            chunk = first + p.prompt_chunks + block
            at = (p.prompt_chunks + block) * CHUNK
            parent.append(chunk)
            width.append(w)
            noisy_ids += shown
            noisy_positions += p.clean_positions[at : at + CHUNK]
            valid[row + w : row + CHUNK] = False
            truth = p.clean_ids[at : at + CHUNK]
            for r in range(w):
                if is_masked[r]:
                    masked_rows.append(row + r)
                    masked_targets.append(truth[r])
                    masked_kinds.append(p.kind)
            own.append((row, at, w))
        members.append((base, len(p.clean_ids), own))
    size = -(-len(pieces) // groups)
    built, inverse, joined = [], torch.zeros(N, dtype=torch.long), 0
    for lo in range(0, len(pieces), size):
        group = _group(members[lo : lo + size], valid, N)
        flat = group.rows.reshape(-1)
        here = flat < N
        inverse[flat[here]] = joined + torch.arange(len(flat))[here]
        joined += len(flat)
        built.append(group)
    scan_inverse = torch.zeros(clean, dtype=torch.long)
    flat_scan = scan.reshape(-1)
    scan_inverse[flat_scan[flat_scan < clean]] = torch.arange(len(flat_scan))[flat_scan < clean]
    return Batch(
        clean,
        noisy,
        torch.tensor(ids + [0] * (spare * CHUNK) + noisy_ids),
        torch.tensor(positions + [0] * (spare * CHUNK) + noisy_positions),
        valid,
        scan,
        scan_inverse,
        is_first,
        torch.tensor(parent),
        torch.tensor(width),
        built,
        inverse,
        torch.tensor(causal_rows),
        torch.tensor(causal_targets),
        torch.tensor(masked_rows),
        torch.tensor(masked_targets),
        torch.tensor(masked_kinds),
    )


def _group(
    members: list[tuple[int, int, list[tuple[int, int, int]]]], valid: Tensor, N: int
) -> AttentionGroup:
    L = max(count + CHUNK * len(own) for _, count, own in members)
    n = len(members)
    rows = torch.full((n, L), N)
    # what a key is: the clean row's index, or beyond every clean row
    order = torch.zeros((n, L), dtype=torch.long)
    # how far a query sees clean rows, and which noisy block it belongs to (0: clean)
    reach = torch.full((n, L), -1)
    block = torch.zeros((n, L), dtype=torch.long)
    for s, (base, count, own) in enumerate(members):
        rows[s, :count] = torch.arange(base, base + count)
        order[s, :count] = torch.arange(count)
        reach[s, :count] = torch.arange(count)
        for b, (row, at, _) in enumerate(own):
            here = slice(count + b * CHUNK, count + (b + 1) * CHUNK)
            rows[s, here] = torch.arange(row, row + CHUNK)
            reach[s, here] = at - 1
            block[s, here] = b + 1
    is_real = torch.cat([valid, torch.zeros(1, dtype=torch.bool)])[rows]
    is_clean = block == 0
    sees_clean = is_clean[:, None, :] & (order[:, None, :] <= reach[:, :, None])
    sees_block = (block[:, :, None] == block[:, None, :]) & ~is_clean[:, :, None]
    mask = (sees_clean | sees_block) & is_real[:, None, :]
    # rows of padding see themselves, so that their softmax is finite
    mask |= torch.eye(L, dtype=torch.bool)
    bias = torch.zeros(mask.shape).masked_fill_(~mask, float("-inf"))
    return AttentionGroup(rows, bias[:, None])
