"""Trains the model: stages of growing length, a fixed time, one GPU.

The learning rate falls linearly over the last part of the time; Muon trains all matrices inside the layers,
AdamW the embedding and the norms. Writes the weights (bf16) and a log, at intervals and at the end.
"""

import argparse
import json
import pathlib
import random
import time

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch.nn.attention import SDPBackend, sdpa_kernel

import data
import export
import recipe
from model import Llama, Shape, rope_tables
from muon import Muon

BATCH_TOKENS = 131_072
TIME_FOR_WARM_UP = 0.01  # of the training time
BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION, "math": SDPBackend.MATH}


def fastest_backend(shape: Shape, length: int = 16384) -> str:
    """Times forward and backward of one attention call with each backend that runs."""
    times = {}
    for name in ("flash", "cudnn"):
        q = torch.randn(4, shape.query_heads, length, shape.head_dim, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        k, v = (torch.randn(4, shape.kv_heads, length, shape.head_dim, device="cuda", dtype=torch.bfloat16, requires_grad=True)
                for _ in range(2))
        try:
            with sdpa_kernel(BACKENDS[name]):
                for repeat in range(4):
                    if repeat == 1:
                        torch.cuda.synchronize()
                        begin = time.time()
                    F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).sum().backward()
                torch.cuda.synchronize()
            times[name] = (time.time() - begin) / 3
        except RuntimeError as error:
            print(f"attention by {name} does not run: {str(error)[:120]}", flush=True)
    print(f"attention, seconds a call at {length}: {times}", flush=True)
    return min(times, key=times.get)


def loss_of(model, ids, weights, cos, sin):
    """Weighted mean loss, and the plain mean over tokens of code (weight one)."""
    logits = model(ids[:, :-1], cos, sin).float()
    nll = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
    weight = weights[:, 1:].flatten()
    answers = weight > 2
    code = weight == 1
    return ((nll * weight).sum() / weight.sum(), (nll * code).sum() / code.sum().clamp(min=1),
            (nll * answers).sum() / answers.sum().clamp(min=1))


class Schedule:
    """The training's progress by its own clock, which excludes compilation and waiting for data."""

    def __init__(self, stages, seconds: float, decay_share: float):
        self.stages, self.seconds, self.decay_share = stages, seconds, decay_share
        self.ends = np.cumsum([s.share for s in stages])

    def stage(self, done: float) -> int:
        return min(int(np.searchsorted(self.ends, done, side="right")), len(self.stages) - 1)

    def rate(self, done: float) -> float:
        return min(1.0, done / TIME_FOR_WARM_UP) * min(1.0, max(0.0, 1 - done) / self.decay_share)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prepared", required=True, type=pathlib.Path, help="folder that prepare.py fills")
    parser.add_argument("--tokenizer", required=True, type=pathlib.Path, help="folder with tokenizer.json")
    parser.add_argument("--output", required=True, type=pathlib.Path)
    parser.add_argument("--recipe", default="first")
    parser.add_argument("--start", type=pathlib.Path, help="model directory to go on from")
    parser.add_argument("--seconds", type=float, default=900)
    parser.add_argument("--rate", type=float, default=0.02, help="Muon's rate at its height")
    parser.add_argument("--adam-rate", type=float, default=3e-3)
    parser.add_argument("--decay-share", type=float, default=0.7)
    parser.add_argument("--save-every", type=float, default=240)
    parser.add_argument("--batch-tokens", type=int, default=BATCH_TOKENS)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    picker = random.Random(args.seed)
    args.output.mkdir(parents=True, exist_ok=True)
    device, on_gpu = torch.device(args.device), args.device == "cuda"
    shape = Shape()
    torch.set_float32_matmul_precision("high")
    backend = BACKENDS[fastest_backend(shape) if on_gpu else "math"]

    model = Llama(shape).to(device)
    if args.start:
        model.load_state_dict(export.load(args.start, device))
    matrices = [p for p in model.layers.parameters() if p.ndim == 2]
    others = [p for p in model.parameters() if not any(p is m for m in matrices)]
    optimizers = [Muon(matrices, args.rate), torch.optim.AdamW(others, args.adam_rate, betas=(0.9, 0.95), weight_decay=0.0, fused=on_gpu)]
    peaks = [o.param_groups[0]["lr"] for o in optimizers]
    step_loss = torch.compile(loss_of, dynamic=False) if on_gpu else loss_of
    tables = rope_tables(shape, shape.context, device)
    stages, share = recipe.RECIPES[args.recipe], recipe.RETRIEVAL_SHARE[args.recipe]

    def backward(ids, weights):
        length = ids.shape[1] - 1
        with torch.autocast(args.device, torch.bfloat16), sdpa_kernel(backend):
            losses = step_loss(model, ids, weights, tables[0][:length], tables[1][:length])
        losses[0].backward()
        return [x.detach() for x in losses]

    def update():
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
        model.zero_grad(set_to_none=True)

    begin = time.time()
    if on_gpu:
        for stage in stages:  # compile every shape before the clock starts
            rows = args.batch_tokens // stage.length
            ids = torch.randint(100, 4000, (rows, stage.length + 1), device=device)
            weights = torch.ones_like(ids, dtype=torch.float32)
            for repeat in range(3):
                backward(ids, weights)
                torch.cuda.synchronize()
                mark = time.time() if repeat == 1 else mark if repeat else 0
            print(f"length {stage.length}: {args.batch_tokens / (time.time() - mark) / 1e6:.2f}M tokens/s "
                  f"forward and backward, compiled after {time.time() - begin:.0f} s", flush=True)
        model.zero_grad(set_to_none=True)
    bos = Tokenizer.from_file(str(args.tokenizer / "tokenizer.json")).token_to_id("<|begin_of_text|>")
    while not (args.prepared / "code.npy").exists():
        time.sleep(1)
    code = data.Code(args.prepared / "code.npy", bos, device)
    schedule = Schedule(stages, args.seconds, args.decay_share)
    log = open(args.output / "log.jsonl", "w")
    step, tokens, waited, current, retrieval = 0, 0, 0.0, -1, None
    start = last_save = time.time()
    sums = None
    while True:
        done = (time.time() - start - waited) / args.seconds
        if done >= 1:
            break
        wanted = schedule.stage(done)
        if wanted != current:
            mark = time.time()
            retrieval = data.Retrieval(args.prepared, wanted, device)
            current = wanted
            print(f"stage of length {stages[wanted].length} at step {step}, {tokens / 1e6:.0f}M tokens", flush=True)
            waited += time.time() - mark
        rows = max(1, args.batch_tokens // stages[current].length)
        losses = backward(*data.batch(code, retrieval, rows, stages[current].length, share, picker))
        rate = schedule.rate(done)
        for optimizer, peak in zip(optimizers, peaks):
            optimizer.param_groups[0]["lr"] = peak * rate
        update()
        step += 1
        tokens += rows * stages[current].length
        sums = losses if sums is None else [a + b for a, b in zip(sums, losses)]
        if step % 20 == 0:
            loss, code_loss, answer_loss = (float(x) / 20 for x in sums)
            sums = None
            row = {"step": step, "seconds": round(time.time() - start - waited, 1), "tokens": tokens,
                   "length": stages[current].length, "rate": round(rate, 4), "loss": round(loss, 4),
                   "code": round(code_loss, 4), "answers": round(answer_loss, 5), "passes": retrieval.passes}
            log.write(json.dumps(row) + "\n")
            log.flush()
            if step % 200 == 0:
                print(row, flush=True)
            if loss != loss:
                raise SystemExit("the loss is not a number")
        if time.time() - last_save > args.save_every:
            mark = time.time()
            export.save(model, args.output / "model")
            last_save = time.time()
            waited += last_save - mark
    export.save(model, args.output / "model")
    print(f"done: {step} steps, {tokens / 1e6:.0f}M tokens, {time.time() - start:.0f} s", flush=True)
    (args.output / "done").touch()


if __name__ == "__main__":
    main()
