"""The training data and its duration: stages by length, tasks by weight."""

import dataclasses

CODE_TASKS = {"niah_single_2": 2, "niah_single_3": 4, "niah_multikey_1": 2, "niah_multivalue": 2, "niah_multiquery": 2}
# The first training had 3, 2 and 2 for vt, cwe and fwe.
NOISE_TASKS = {"niah_single_1": 2, "niah_multikey_2": 3, "niah_multikey_3": 4, "vt": 4, "cwe": 4, "fwe": 3}
# Documents shorter than this cannot hold the task; cwe has a smaller form below 4096 tokens.
LEAST_TOKENS = {"vt": 850, "cwe": 1100}
CWE_LARGE_FORM, CWE_LARGE_LEAST = 4096, 4500
ALL_TASKS = ["niah_single_1", "niah_single_2", "niah_single_3", "niah_multikey_1", "niah_multikey_2",
             "niah_multikey_3", "niah_multivalue", "niah_multiquery", "vt", "cwe", "fwe"]


@dataclasses.dataclass(frozen=True)
class Stage:
    length: int
    share: float            # of the training time
    retrieval_tokens: float  # millions of tokens of retrieval rows to prepare
    shortest: int           # of the log-uniform half of the documents
    questions: int


FIRST = [
    Stage(1024, 0.10, 110, 400, 4),
    Stage(4096, 0.25, 160, 1100, 8),
    Stage(16384, 0.35, 130, 2500, 12),
    Stage(32768, 0.30, 80, 5000, 16),
]
# Continues from the first recipe's model with more code; tasks with the worst answers have larger weights.
SECOND = [
    Stage(4096, 0.35, 200, 1100, 8),
    Stage(16384, 0.30, 130, 2500, 12),
    Stage(32768, 0.35, 90, 5000, 16),
]
RECIPES = {"first": FIRST, "second": SECOND,
           "tiny": [Stage(512, 0.5, 0.3, 380, 2), Stage(1024, 0.5, 0.3, 400, 4)]}
RETRIEVAL_SHARE = {"first": 0.6, "second": 0.45, "tiny": 0.6}  # in a batch's rows; the rest is code
CHAT_SHARE = 0.2
HEADLESS_SHARE = 0.2
EVALUATION_LENGTHS = [1024, 2048, 4096, 8192, 16384, 32768]
