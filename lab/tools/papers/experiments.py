"""The page's section for each experiment."""

import pictures
import published
from page import figure, percent, ratio, times, tokens, write_skipped

OTHERS = ("retroinfer", "infinigen", "pqcache")  # compared with litecache at an equal budget


def as_published(system):
    return system + ", as published"


AS_PUBLISHED = tuple(as_published(system) for system in OTHERS)

BUDGET = (
    "10% of the context's rows: litecache's top-k (and 4 first, 64 recent and up to 256 carried tokens; all of layer 0 lies on "
    "the device), retroinfer's clusters attended exactly (beside the 23.2% that it estimates from centroids on the device), "
    "infinigen's cap (beside its first two layers, which attend all rows; with one such layer, the least that it can have, it "
    "finds no needle in the shipped model), pqcache's top 5% and recent 5%. Published defaults: retroinfer 1.8% of the clusters; "
    "infinigen a margin of 4 below the best score, at most 20%; pqcache's are the equal budget.")

MEANS = (
    "`as published`: the same budget with the means of the authors' programs, which is what the papers measured: no graphs, and "
    "rows of infinigen and pqcache gathered by the CPU and copied. All other figures of the systems are of this engine's "
    "kernels, graphs and transfers, as litecache's are.")


def decode(system, shape, context, batch=1):
    return ("decode", system, shape, batch, context)


def ticks_of(lengths):
    return {length: tokens(length) for length in lengths}


# ---- latency ----


def overhead(suite, key):
    """The time a step waits because of its cache, relative to its computation."""
    cache = [suite.number(key, f"breakdown/{part}_ms") for part in ("management", "transfer")]
    compute = sum(suite.number(key, f"breakdown/{part}_ms") or 0 for part in ("products", "attention", "retrieval", "rest"))
    return None if None in cache else ratio(sum(cache), compute)


def latency(suite, page):
    shape, lengths = suite.grid["shapes"][0], suite.grid["lengths"]
    page.heading("Step latency against length (Figure 2)")
    page.paragraph(
        f"A decode step of one sequence, {shape} shape, milliseconds. The selecting systems keep 10% of the rows. Published "
        "(H100): RetroInfer takes 14 to 79% longer than full attention and 15 to 143% longer than full attention replayed as a "
        "graph, PQCache 168 to 797% and 176 to 1001% longer; the graph makes full attention 1.01 to 1.75 times as fast.")
    head = ["system", *map(tokens, lengths)]
    rows, curves = [], {}
    for system in suite.systems("latency"):
        row, curves[system] = [system], []
        for length in lengths:
            ms = suite.number(decode(system, shape, length), "ms_per_step")
            full = suite.number(decode("full", shape, length), "ms_per_step")
            row.append("-" if ms is None else f"{figure(ms)} ({times(ratio(ms, full))})")
            if ms is not None:
                curves[system].append((length, ms))
        rows.append(row)
    page.table(head, rows)
    page.paragraph("In brackets: times the latency of `full`.")
    page.picture("latency", "step latency against length",
                 pictures.lines(f"Decode step of one sequence, {shape}", "tokens of context", "milliseconds",
                                ticks_of(lengths), curves))

    page.heading("Cache overhead that is not hidden (Table 1)")
    page.paragraph("Management and transfer that a step waits for, over the rest of it. Published: RetroInfer on H100 / A40.")
    rows = [[system, *(percent(overhead(suite, decode(system, shape, length))) for length in lengths)]
            for system in ("litecache", *OTHERS, *AS_PUBLISHED)]
    h100, a40 = ([published.at(row, length) for length in lengths] for row in (published.OVERHEAD_H100, published.OVERHEAD_A40))
    rows.append(["published", *("-" if a == "-" else f"{a}% / {b}%" for a, b in zip(h100, a40))])
    page.table(head, rows)
    write_skipped(suite, "latency", page)


# ---- breakdown ----

PARTS = ("products", "attention", "retrieval", "transfer", "management", "rest", "launch")


def write_layers(suite, shape, length, page):
    systems = suite.systems("breakdown", shape)

    def part_us(system, part):
        key = decode(system, shape, length)
        ms, layers = suite.number(key, f"breakdown/{part}_ms"), suite.number(key, "layers")
        return None if ms is None else ms * 1e3 / (layers or 1)

    # Cells of earlier versions count launches in the rest.
    parts = [part for part in PARTS if any(part_us(system, part) is not None for system in systems)]

    def layer_us(system):
        key = decode(system, shape, length)
        if suite.number(key, "layers") is None or suite.number(key, "breakdown/marks") is None:
            return None
        return sum(part_us(system, part) or 0 for part in parts)

    rows, bars = [], {}
    for system in systems:
        total = layer_us(system)
        if total is not None:
            bars[system] = [part_us(system, part) or 0 for part in parts]
        rows.append([system, *(figure(part_us(system, part)) for part in parts), figure(total),
                     times(ratio(total, layer_us("litecache"))),
                     figure(suite.number(decode(system, shape, length), "link_bytes_per_step"), 1e-6)])
    page.table([f"{shape}, {tokens(length)}", *parts, "layer", "to litecache", "over the link, MB a step"], rows)
    page.picture(f"breakdown-{shape}-{tokens(length)}", f"a layer's time by what it is for, {shape}, {tokens(length)} tokens",
                 pictures.bars(f"A layer at {tokens(length)} tokens, {shape}", "microseconds", parts, bars))


def breakdown(suite, page):
    page.heading("Where a layer's time goes (Figures 3 and 10)")
    page.paragraph(
        "One sequence, microseconds a layer of the stream that computes; what marking costs is taken off. `transfer` is what a "
        "layer waits for; rows that travel while others are computed are in the last column alone. Published (128K, without "
        "launch overhead): LiteCache's layers are 2.2 to 16.1 times as fast as RetroInfer's and InfiniGen's on H100, 2.0 to 4.9 "
        "times on A40; RetroInfer spends 28.5 to 60.2% of its time on cache management, of whose parts updates are 17 to 66% "
        "and lookups 11 to 20%.")
    page.paragraph(MEANS)
    for shape in suite.grid["shapes"]:
        for length in suite.contexts("breakdown", shape):
            write_layers(suite, shape, length, page)
    write_skipped(suite, "breakdown", page)


# ---- throughput ----


def rate(suite, system, shape, point):
    return suite.number(decode(system, shape, point[1], point[0]), "tokens_per_s")


def best(suite, systems, shape, point):
    rates = [rate(suite, system, shape, point) for system in systems]
    return max((value for value in rates if value is not None), default=None)


def points_of(grid, shape):
    """(batch, context) of Figure 9."""
    return [(1, length) for length in grid["lengths"]] + [(batch, grid["batch_context"]) for batch in grid["batches"][shape]]


def ends_of(grid):
    """(batch, context) at which the other forms of systems are measured."""
    ends = dict.fromkeys([(1, min(grid["lengths"])), (1, max(grid["lengths"]))])
    return list(ends) + ([(grid["forms_batch"], grid["batch_context"])] if grid["forms_batch"] > 0 else [])


def margins(suite, page):
    """litecache's gain over the others, with which the page begins."""
    def span(values):
        values = [value for value in values if value is not None]
        return f"{min(values):.2f}x to {max(values):.2f}x" if values else "-"

    rows = []
    for shape in suite.grid["shapes"]:
        points = points_of(suite.grid, shape)
        lite = {point: rate(suite, "litecache", shape, point) for point in points}
        other = {point: best(suite, OTHERS, shape, point) for point in points}
        rows.append([
            shape,
            span(ratio(lite[point], other[point]) for point in points),
            span(ratio(rate(suite, "streaming", shape, point), other[point]) for point in points),
            span(ratio(lite[point], best(suite, AS_PUBLISHED, shape, point)) for point in points),
            "{:.2f}x to {:.2f}x".format(*published.MARGIN[published.family(shape)]),
            span(ratio(lite[point], rate(suite, "full", shape, point)) for point in points)])
    page.paragraph("Decode throughput at an equal budget of rows, KV on the host, least to most over the batches and lengths of "
                   "Figure 9:")
    page.table(["shape", "litecache to the best other", "at most", "to the best as published", "in the paper (H100)",
                "litecache to full"], rows)


def draw_throughput(suite, shape, page):
    grid = suite.grid
    systems = ("full", "litecache", *OTHERS, "streaming", *AS_PUBLISHED)
    points = points_of(grid, shape)

    def curves(chosen, x):
        return {system: sorted((point[x], value) for point in chosen
                               if (value := rate(suite, system, shape, point)) is not None) for system in systems}

    by_length = [point for point in points if point[0] == 1]
    by_batch = [point for point in points if point[1] == grid["batch_context"]]
    page.picture(f"throughput-length-{shape}", f"throughput against length, {shape}",
                 pictures.lines(f"One sequence, {shape}", "tokens of context", "tokens a second",
                                ticks_of(context for _, context in by_length), curves(by_length, 1)))
    page.picture(f"throughput-batch-{shape}", f"throughput against batch, {shape}",
                 pictures.lines(f"Sequences of {tokens(grid['batch_context'])} tokens, {shape}", "sequences",
                                "tokens a second", {batch: str(batch) for batch, _ in sorted(by_batch)}, curves(by_batch, 0)))


def throughput(suite, page):
    grid = suite.grid
    (llama, qwen) = (published.MARGIN[name] for name in ("llama", "qwen"))
    page.heading("Decode throughput over batch and length (Figure 9)")
    page.paragraph(
        "Tokens a second, all sequences together. `litecache to best`: over the best of retroinfer, infinigen and pqcache at an "
        f"equal budget; published on H100: {llama[0]:.2f} to {llama[1]:.2f} times on Llama3-8B, {qwen[0]:.2f} to {qwen[1]:.2f} "
        "on Qwen2.5-14B. `at most`: what it would be if litecache's step took no longer than one that attends 68 tokens and "
        "nothing else (streaming).")
    page.paragraph("Equal budget: " + BUDGET)
    for shape in grid["shapes"]:
        systems = ("full", "litecache", *OTHERS, "streaming")
        rows = []
        for point in points_of(grid, shape):
            rates = [rate(suite, system, shape, point) for system in systems]
            other = best(suite, OTHERS, shape, point)
            rows.append([f"{point[0]} x {tokens(point[1])}", *map(figure, rates), times(ratio(rates[1], other)),
                         times(ratio(rates[-1], other))])
        page.table([shape, *systems, "litecache to best", "at most"], rows)
        draw_throughput(suite, shape, page)
    page.paragraph(MEANS)
    for shape in grid["shapes"]:
        systems = AS_PUBLISHED + (("retroinfer, 1.8%", "infinigen, 20%") if shape == grid["shapes"][0] else ())
        rows = [[f"{point[0]} x {tokens(point[1])}", *(figure(rate(suite, system, shape, point)) for system in systems),
                 times(ratio(rate(suite, "litecache", shape, point), best(suite, AS_PUBLISHED, shape, point)))]
                for point in ends_of(grid)]
        page.table([shape, *systems, "litecache to best as published"], rows)
    write_skipped(suite, "throughput", page)


def prefill(suite, page):
    page.heading("Prefill throughput (Figure 11)")
    page.paragraph("Tokens of one prompt a second, in brackets the share of full attention's. Published: LiteCache is close to "
                   "full attention, RetroInfer and InfiniGen are slower.")
    systems = suite.systems("prefill")
    for shape in suite.grid["shapes"]:
        rows = []
        for length in suite.grid["prefill_lengths"]:
            rates = {system: suite.number(("prefill", system, shape, 1, length), "tokens_per_s") for system in systems}
            shares = {system: ratio(value, rates["full"]) for system, value in rates.items()}
            rows.append([tokens(length), *(figure(value) + ("" if shares[system] is None else f" ({percent(shares[system])})")
                                           for system, value in rates.items())])
        page.table([shape, *systems], rows)
    write_skipped(suite, "prefill", page)


# ---- cache ----


def cache(suite, page):
    grid, systems = suite.grid, suite.systems("cache")

    def write_rows(shape, points, names, path, scale, published_rows):
        rows = [[system, *(figure(suite.number(decode(system, shape, context, batch), path), scale) for batch, context in points)]
                for system in systems]
        by_batch = names[0] != tokens(points[0][1])
        rows += [[row[0], *(published.at(row, point[0 if by_batch else 1]) for point in points)] for row in published_rows]
        page.table([shape, *names], rows)

    def by_length(shape, path, scale, rows):
        write_rows(shape, [(1, length) for length in grid["lengths"]], list(map(tokens, grid["lengths"])), path, scale, rows)

    page.heading("Device memory of the cache (Table 2)")
    page.paragraph("What a sequence's cache takes of the device, GB (1e9 bytes): cached and resident rows, metadata, indices, "
                   "buffers. Published: A40, with about 10% of the rows.")
    for shape in grid["shapes"]:
        by_length(shape, "kv_device_bytes", 1e-9, published.MEMORY[published.family(shape)])
    page.heading("Hit ratios (Table 3)")
    page.paragraph("Percent: of heads' lookups (litecache), of clusters (retroinfer), of rows (pqcache); the page's beginning says "
                   "where they come from. Published: A40.")
    for shape in grid["shapes"]:
        by_length(shape, "hit_ratio", 100, published.HITS[published.family(shape)])
        batches = grid["batches"][shape]
        write_rows(shape, [(batch, grid["batch_context"]) for batch in batches],
                   [f"{batch} x {tokens(grid['batch_context'])}" for batch in batches], "hit_ratio", 100,
                   published.BATCH_HITS[published.family(shape)])
    write_skipped(suite, "cache", page)


# ---- ablation, link ----


def ablation(suite, page):
    grid, shape = suite.grid, suite.grid["shapes"][-1]
    (graph, *others), (graph_64, *others_64) = published.ABLATION_16, published.ABLATION_64
    taken = [f"graph {graph}% at 16 x 8K and {graph_64}% at 64 x 8K"] + [
        f"{name} {a}% and {b}%" for name, a, b in zip(("thresholds", "aggregation", "resident heads"), others, others_64)]
    page.heading("Ablation (Figure 12)")
    page.paragraph(
        f"A decode step at {tokens(grid['batch_context'])} tokens, {shape} shape, milliseconds, hit ratio, and what each step "
        "takes off the one before it. Baseline: prefetch and QSAC with one threshold (0.8) and the least similar head of a group. "
        f"Published (Qwen2.5-14B, H100), taken off: {', '.join(taken)}. Thresholds, aggregation and resident heads need a trace: without one "
        "all have the hits that are forced.")
    head, rows = ["step"], []
    for batch in grid["ablation_batches"]:
        head += [f"batch {batch}, ms", "hits", "taken off"]
    before = None
    for system in suite.systems("ablation"):
        row = [system.removeprefix("ablation: ")]
        for batch in grid["ablation_batches"]:
            def number(name, path, batch=batch):
                return suite.number(decode(name, shape, grid["batch_context"], batch), path)

            kept = ratio(number(system, "ms_per_step"), number(before, "ms_per_step") if before else None)
            row += [figure(number(system, "ms_per_step")), percent(number(system, "hit_ratio")),
                    percent(None if kept is None else 1 - kept)]
        rows.append(row)
        before = system
    page.table(head, rows)
    write_skipped(suite, "ablation", page)


def link(suite, page):
    shape, lengths = suite.grid["shapes"][0], suite.grid["link_lengths"]
    page.heading("Link bandwidth by transfer engine (CLO's Figure 13)")
    page.paragraph(
        f"GB/s: rows that a step brings over the time it waits for them, every head refreshed, 10% of the rows, {shape} shape. "
        f"Published: 4 CPU threads over PCIe 4.0 stay near GDRCopy's peak of {published.LINK_PEAK_GBPS} GB/s from 4K to 128K "
        "tokens. lab/notes/gpu.md has the engines alone, without a model around them.")

    def gb_per_s(system, length):
        key = decode(system, shape, length)
        moved = ratio(suite.number(key, "link_bytes_per_step"), suite.number(key, "breakdown/transfer_ms"))
        return None if moved is None else moved / 1e6

    rows, curves = [], {}
    for system in suite.systems("link"):
        name = system.removeprefix("link: ")
        rates = {length: gb_per_s(system, length) for length in lengths}
        rows.append([name, *map(figure, rates.values())])
        curves[name] = [(length, value) for length, value in rates.items() if value is not None]
    page.table(["engine", *map(tokens, lengths)], rows)
    page.picture("link", "link bandwidth against length",
                 pictures.lines("Rows over the link", "tokens of context", "GB/s", ticks_of(lengths), curves))
    write_skipped(suite, "link", page)


# ---- accuracy ----

# Rows attended by every head, if not 10%.
ATTENDED = {"full": "all", "flexgen": "all", "kvpr": "all", "retroinfer": "10%, 23.2% estimated",
            "retroinfer, 1.8%": "1.8%, 23.2% estimated", "infinigen, 20%": "at most 20%", "pqcache, 20%": "20%",
            "streaming": "68 tokens"}


def accuracy(suite, page):
    grid = suite.grid
    page.heading("Accuracy by system (Table 4)")
    if not grid["accuracy_model"]:
        page.paragraph("Not measured: it needs a checkpoint that answers questions (`--accuracy-model DIR`).")
    else:
        lengths = grid["accuracy_lengths"]
        # Answers hardly depend on the machine, so it may differ from that of the other experiments; they do not depend
        # on the number of threads.
        machines = sorted({result.get("machine", "an unknown machine").split(",")[0]
                           for key in suite.experiments["accuracy"] if (result := suite.measured(key)) is not None})
        page.paragraph(
            "RULER without the two tasks of questions about paragraphs, percent, average over the tasks "
            f"({grid['accuracy_count']} samples each; cwe needs more than 4K), {grid['accuracy_model']}, on "
            f"{' and '.join(machines) or 'no machine'}, nothing forced; the hit ratio and what moves over the link a generated "
            "token are of the longest. `litecache, prefetch` and the systems below it have the settings whose speed is measured "
            "above; `litecache` alone is what the program does by default. Published figures below are of models that are larger "
            "by orders of magnitude.")

        def number(system, length, path):
            return suite.number(("accuracy", system, grid["accuracy_model"], grid["accuracy_count"], length), path)

        head, rows = ["system", "rows attended"], []
        for length in lengths:
            head += [tokens(length), "to full"]
        for system in suite.systems("accuracy"):
            row = [system, ATTENDED.get(system, "10%")]
            for length in lengths:
                score, full = number(system, length, "average"), number("full", length, "average")
                row.append("-" if score is None else f"{score:.1f}")
                row.append("-" if score is None or full is None else f"{score - full:+.1f}")
            rows.append(row + [percent(number(system, lengths[-1], "hit_ratio")),
                               figure(number(system, lengths[-1], "moved_per_token"), 2**-20)])
        page.table([*head, "hit ratio", "moved, MiB"], rows)
        write_skipped(suite, "accuracy", page)
    page.paragraph("Published:")
    page.table(["model and system", "LongBench", "RULER 16K", "32K", "64K", "128K"],
               [[name, *(f"{score:.2f}" for score in scores)] for name, scores in published.ACCURACY])


WRITERS = {writer.__name__: writer for writer in (latency, breakdown, throughput, prefill, cache, ablation, link, accuracy)}
