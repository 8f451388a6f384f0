"""Trains the importance of every query head (CLO, appendix A; DuoAttention's training).

Each head's attention output is a * full + (1 - a) * streaming; the model is frozen, and all a are trained
so that the last hidden states that predict passkeys stay those of the full model while the mean a is
reduced. Writes OUTPUT (one row per layer, one column per query head) and a JSON of the recipe next to it.
"""

import argparse
import pathlib
import random
import sys
import time

import torch

import common

LOG_EVERY = 50


def rate_factor(step: int, steps: int) -> float:
    """DuoAttention's schedule: rises over the first fifth, falls over the last, to no less than a tenth."""
    fifth = max(steps // 5, 1)
    return min(1.0, max((step + 1) / fifth, 0.1), max((steps - step) / fifth, 0.1))


def draw_lengths(args, longest: int):
    rng = random.Random(f"lengths {args.seed}")
    grid = [round(args.min_length + (longest - args.min_length) * i / max(args.length_steps - 1, 1))
            for i in range(args.length_steps)]
    return [rng.choice(grid) for _ in range(args.steps)]


def accuracy(model, maker, lengths, seed: int) -> dict:
    """Percentage of right answers at each length."""
    with torch.no_grad():
        made = common.documents(maker, lengths, seed)
        marks = [(length, common.right_answers(model, d, common.hidden_states(model, d))) for length, d in zip(lengths, made)]
    return {n: round(100 * sum(sum(m) for at, m in marks if at == n) / sum(len(m) for at, m in marks if at == n), 1)
            for n in dict.fromkeys(lengths)}


def progress(step: int, steps: int, begin: float, row: dict):
    left = (time.time() - begin) / step * (steps - step)
    text = f"step {step}/{steps}  loss {row['distillation']:.5f}  mean a {row['mean']:.3f}  {left:.0f} s left"
    end = "\n" if step % (10 * LOG_EVERY) == 0 or step == steps or not sys.stderr.isatty() else ""
    print(("\r\x1b[K" if sys.stderr.isatty() else "") + text, end=end, file=sys.stderr, flush=True)


def train(args, model, mix, maker, lengths) -> list[dict]:
    """Trains mix.alpha; returns the log, one row for every LOG_EVERY steps."""
    optimizer = torch.optim.AdamW([mix.alpha], lr=args.rate, weight_decay=0.0)
    begin, log, sums, count = time.time(), [], 0.0, 0
    for step, document in enumerate(common.documents(maker, lengths, args.seed)):
        positions, _ = common.predicting(document, model.device)
        mix.mixing = False
        with torch.no_grad():
            wanted = common.hidden_states(model, document)[positions].float()
        mix.mixing = True
        distance = (common.hidden_states(model, document)[positions].float() - wanted).square().mean()
        if args.relative:
            distance = distance / wanted.square().mean()
        optimizer.param_groups[0]["lr"] = args.rate * rate_factor(step, args.steps)
        optimizer.zero_grad()
        (distance + args.reg * mix.alpha.abs().mean()).backward()
        optimizer.step()
        with torch.no_grad():
            mix.alpha.clamp_(0, 1)
        sums, count = sums + distance.detach(), count + 1
        if count == LOG_EVERY or step + 1 == args.steps:
            row = {"step": step + 1, "distillation": round(sums.item() / count, 6), "mean": round(mix.alpha.detach().mean().item(), 4)}
            if row["distillation"] != row["distillation"]:
                raise SystemExit(f"the loss is not a number at step {step + 1}")
            log.append(row)
            progress(step + 1, args.steps, begin, row)
            sums, count = 0.0, 0
    mix.mixing = False
    return log


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    common.add_arguments(parser)
    parser.add_argument("--output", required=True, type=pathlib.Path, help="the TSV; the recipe goes beside it as .json")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--min-length", type=int, default=1000, help="tokens of the shortest documents")
    parser.add_argument("--max-length", type=int, default=32000, help="of the longest; at most the model's context")
    parser.add_argument("--length-steps", type=int, default=50, help="lengths from the shortest to the longest")
    parser.add_argument("--rate", type=float, default=0.02, help="AdamW's at its height")
    parser.add_argument("--reg", type=float, default=0.05, help="weight of mean |a|")
    parser.add_argument("--relative", action="store_true", help="divide the squared distance by the mean square of the states")
    parser.add_argument("--sink", type=int, default=128, help="first tokens that streaming attention sees")
    parser.add_argument("--recent", type=int, default=256, help="last tokens that it sees")
    parser.add_argument("--checkpoint", action="store_true", help="recompute layers in the backward pass (large models)")
    parser.add_argument("--least-accuracy", type=float, default=80,
                        help="percent of passkeys the full model must find, or its heads' importance means nothing")
    args = parser.parse_args()
    if args.steps < 1 or args.length_steps < 1 or args.passkeys < 1:
        parser.error("--steps, --length-steps and --passkeys are 1 or more")
    torch.manual_seed(args.seed)
    begin = time.time()
    model, mix = common.load(args, args.sink, args.recent)
    longest = min(args.max_length, getattr(model.config, "max_position_embeddings", args.max_length))
    maker = common.make_maker(args)
    if not maker.shortest() <= args.min_length <= longest:
        parser.error(f"--min-length {args.min_length} must lie between {maker.shortest()}, the shortest document, and {longest}")
    found = accuracy(model, maker, 4 * sorted({args.min_length, (args.min_length + longest) // 2, longest}), args.seed + 1_000_000)
    print(f"full attention finds, in percent by length: {found}", file=sys.stderr)
    if sum(found.values()) / len(found) < args.least_accuracy:
        raise SystemExit(f"{args.model}: under {args.least_accuracy} percent of the passkeys are found with full attention; "
                         "choose --values or lengths that the model can answer")
    if args.checkpoint:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        model.train()  # checkpointing needs it; these families have no active dropout
    started = time.time()
    log = train(args, model, mix, maker, draw_lengths(args, longest))
    alpha = mix.alpha.detach().cpu()
    args.output.parent.mkdir(parents=True, exist_ok=True)
    common.write_table(args.output, alpha)
    common.write_json(args.output.with_suffix(".json"), {
        "model": common.fingerprint(args.model),
        "method": "CLO appendix A: one a per query head, trained as DuoAttention trains one per KV head",
        "layers": alpha.shape[0], "query_heads": alpha.shape[1], "kv_heads": model.config.num_key_value_heads,
        "steps": args.steps, "rate": args.rate, "regularization": args.reg, "relative_loss": args.relative,
        "sink": args.sink, "recent": args.recent, "seed": args.seed, "dtype": args.dtype,
        "lengths": {"shortest": args.min_length, "longest": longest, "steps": args.length_steps},
        "passkeys": args.passkeys, "values": args.values, "haystack": args.haystack.name,
        "accuracy_of_full_attention": found, "seconds": round(time.time() - started, 1),
        "torch": torch.__version__, "device": torch.cuda.get_device_name() if args.device.startswith("cuda") else args.device,
        "layer_means": [round(float(a), 4) for a in alpha.mean(1)], "loss_curve": log})
    print(f"{args.output}: mean {alpha.mean():.3f}, {time.time() - begin:.0f} s in all", file=sys.stderr)


if __name__ == "__main__":
    main()
