"""Figures of the papers: LiteCache (arXiv 2511.14510v2), H100 and A40, and CLO (v1 of the same paper).

Figures without a table number are from the papers' text.
"""

K = 1024


def at(row, place):
    """The published value at a length or batch, "-" if there is none: the values of a row belong to first, 2 first, 4
    first, ..."""
    _, first, values = row
    index = (place // first).bit_length() - 1 if place >= first else 0
    there = index < len(values) and first << index == place and values[index] is not None
    return f"{values[index]:g}" if there else "-"


# Table 1: RetroInfer's exposed cache overhead, relative to GPU kernel time, percent.
OVERHEAD_H100 = ("H100", 4 * K, (45, 51, 51, 59, 68, 63))
OVERHEAD_A40 = ("A40", 4 * K, (31, 32, 33, 32, 41, 47))

# Table 2: cache memory on the GPU in GB, by total number of tokens.
MEMORY = {
    "llama": [("published RetroInfer", 32 * K, (1.20, 2.40, 4.80, 9.56, 19.12)),
              ("published LiteCache", 32 * K, (0.53, 1.09, 2.62, 8.19, 14.09))],
    "qwen": [("published RetroInfer", 16 * K, (0.90, 1.79, 3.59, 7.20, 14.34)),
             ("published LiteCache", 16 * K, (0.37, 0.74, 1.49, 3.44, 8.03))],
}

# Table 3: hit ratios in percent at batch 1, and CLO's Table 2.
HITS = {
    "llama": [("published RetroInfer", 32 * K, (91.2, 91.4, 91.4, None, None)),
              ("published LiteCache", 32 * K, (83.5, 82.6, 84.0, 90.1, 88.6)),
              ("published RetroInfer (CLO)", 4 * K, (95, 94, 93, 92, 93, 93)),
              ("published PQCache (CLO)", 4 * K, (39, 40, 37, 37, 37, 36))],
    "qwen": [("published RetroInfer", 16 * K, (93.1, 93.1, 93.4, 93.1, None)),
             ("published LiteCache", 16 * K, (75.8, 73.9, 65.2, 72.5, 68.3))],
}
# ... by batch, at 8K.
BATCH_HITS = {
    "llama": [("published RetroInfer", 4, (90.4, 90.1, 90.1, 90.0, 90.1)),
              ("published LiteCache", 4, (79.5, 74.7, 76.7, 85.0, 80.0))],
    "qwen": [("published RetroInfer", 2, (92.7, 91.3, 91.4, 91.3, 91.4)),
             ("published LiteCache", 2, (80.6, 80.7, 80.7, 81.5, 80.8))],
}

# Table 4: LongBench, RULER at 16K, 32K, 64K, 128K.
ACCURACY = [
    ("Qwen2.5-14B, full", (53.34, 94.35, 94.48, 92.29, 88.85)),
    ("Qwen2.5-14B, RetroInfer", (54.71, 94.73, 94.41, 92.37, 89.49)),
    ("Qwen2.5-14B, InfiniGen", (52.74, 92.78, 92.19, 89.74, 85.26)),
    ("Qwen2.5-14B, HATA", (53.19, 94.06, 94.13, 92.24, 88.47)),
    ("Qwen2.5-14B, LiteCache + HATA", (53.15, 94.36, 94.22, 92.35, 88.94)),
    ("Llama3-8B, full", (41.06, 86.07, 80.80, 76.26, 72.96)),
    ("Llama3-8B, RetroInfer", (41.11, 86.36, 80.64, 76.26, 72.73)),
    ("Llama3-8B, InfiniGen", (40.22, 79.70, 76.76, 72.96, 69.37)),
    ("Llama3-8B, HATA", (41.58, 86.56, 80.94, 76.28, 73.87)),
    ("Llama3-8B, LiteCache + HATA", (41.15, 85.65, 80.70, 75.94, 73.44)),
]

# Figure 9, text: LiteCache's throughput over the best of the other offloading systems, H100: minimum and maximum.
MARGIN = {"llama": (2.08, 3.24), "qwen": (1.67, 2.27)}

# Figure 12a, text: reduction of a decode step's latency by each optimization, percent, Qwen2.5-14B, H100: graph,
# thresholds, aggregation, resident heads.
ABLATION_16 = (41.1, 31.2, 28.3, 3.4)
ABLATION_64 = (3.5, 43.1, 29.8, 25.2)

# CLO's Figure 13, text: 4 threads come close to GDRCopy's peak over PCIe 4.0, at any length.
LINK_PEAK_GBPS = 21.21


def family(shape):
    """The published model that a shape is compared with."""
    return "qwen" if "qwen" in shape else "llama"
