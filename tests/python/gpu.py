"""What the Python package's tests on a GPU share."""
import os
import random
import sys
import unittest

from litecache_llm import KvCache, LiteCacheError

try:
    import torch
except ImportError:
    torch = None


def why_not():
    """Why there is nothing to test on; None if there is."""
    if torch is None:
        return "no PyTorch"
    if not torch.cuda.is_available():
        return "PyTorch finds no GPU"
    try:
        KvCache(layers=1, q_heads=1, kv_heads=1, head_dim=64, device="cuda", device_memory="1MiB", kv_policy="full")
    except LiteCacheError as error:
        return str(error) if "built without CUDA" in str(error) else None
    return None


def main():
    """Runs the tests of the program; 77 says that they were skipped."""
    reason = why_not()
    if reason:
        print("skipped:", reason)
        sys.exit(77)
    unittest.main()


def new_random():
    """Random numbers on the GPU, from a seed that is printed; LC_TEST_SEED repeats it."""
    seed = int(os.environ.get("LC_TEST_SEED") or random.SystemRandom().randrange(2**32))
    print(f"LC_TEST_SEED={seed}", file=sys.stderr)
    return torch.Generator("cuda").manual_seed(seed)
