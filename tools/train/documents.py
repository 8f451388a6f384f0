"""Turns the retrieval generator's token documents into training rows.

The generator gives each token a class: 0 document, 1 question, 2 answer. This module adds end tokens
to answers (so that generation stops), turns some documents into chats, removes the first line of some, and
packs documents into rows; the rest of a row is filled with code.
"""

import numpy as np

DOCUMENT, QUESTION, ANSWER = 0, 1, 2
# Loss weights in sixteenths. Unlike code, a haystack of noise or random needles teaches almost nothing.
WEIGHT_CODE, WEIGHT_NOISE, WEIGHT_QUESTION, WEIGHT_ANSWER = 16, 2, 8, 64


class Vocabulary:
    """The ids needed for rewriting, looked up in the tokenizer."""

    def __init__(self, tokenizer):
        one = lambda text: tokenizer.encode(text, add_special_tokens=False).ids
        self.bos, self.eos = one("<|begin_of_text|>")[0], one("<|end_of_text|>")[0]
        self.turn, self.end = one("<|im_start|>")[0], one("<|im_end|>")[0]
        self.newline, self.dot = one("\n")[0], one(".")[0]
        self.dot_newline = one(".\n") if len(one(".\n")) == 1 else [-1]
        self.question_ends = {one("?")[0], one(".")[0]}
        # An assistant's turn starts without the space that follows a question in plain text.
        self.unspaced = {one(" " + w)[0]: one(w) for w in ("The", "Answer")}
        self.user, self.assistant = one("user\n"), one("assistant\n")
        self.has_newline = np.array(["Ċ" in tokenizer.id_to_token(i) for i in range(tokenizer.get_vocab_size())])


def read_documents(path):
    """Yields (ids, classes) from the generator's binary form."""
    data = np.fromfile(path, dtype=np.uint8)
    at = 0
    while at < len(data):
        n = int(data[at:at + 4].view("<u4")[0])
        ids = data[at + 4:at + 4 + 4 * n].view("<u4").astype(np.uint16)
        yield ids, data[at + 4 + 4 * n:at + 4 + 5 * n]
        at += 4 + 5 * n


def segments(classes):
    """(class, begin, end) of every run of one class."""
    edges = np.flatnonzero(np.diff(classes)) + 1
    bounds = [0, *edges.tolist(), len(classes)]
    return [(int(classes[b]), b, e) for b, e in zip(bounds, bounds[1:])]


class Rewriter:
    def __init__(self, vocabulary: Vocabulary, code_haystack: bool, rng):
        self.v, self.rng = vocabulary, rng
        self.weight = {DOCUMENT: WEIGHT_CODE if code_haystack else WEIGHT_NOISE,
                       QUESTION: WEIGHT_QUESTION, ANSWER: WEIGHT_ANSWER}

    def rewrite(self, ids, classes, chat: bool, headless: bool):
        """(ids, weights) of one document, each a list of arrays joined; begins without BOS."""
        v, out, weights = self.v, [], []

        def put(tokens, weight):
            out.extend(tokens)
            weights.extend([weight] * len(tokens))

        ids = ids.tolist()
        runs = segments(classes)
        first = True
        for index, (kind, begin, end) in enumerate(runs):
            part = ids[begin:end]
            if kind == DOCUMENT:
                if index == 0:
                    if headless:
                        cut = next((i for i, t in enumerate(part) if v.has_newline[t]), -1)
                        part = part[cut + 1:]
                    if chat:
                        put([v.turn, *v.user], WEIGHT_QUESTION)
                elif part and part[0] == v.newline:
                    part = part[1:]  # the end token replaces the newline after an answer
                put(part, self.weight[DOCUMENT])
            elif kind == QUESTION:
                if part and part[0] == v.newline and not first:
                    part = part[1:]
                if chat:
                    if not first:
                        put([v.turn, *v.user], WEIGHT_QUESTION)
                    cut = max(i for i, t in enumerate(part) if i and t in v.unspaced and part[i - 1] in v.question_ends)
                    put(part[:cut] + [v.end, v.newline, v.turn, *v.assistant], WEIGHT_QUESTION)
                    put(v.unspaced[part[cut]] + part[cut + 1:], WEIGHT_QUESTION)
                else:
                    put(part, WEIGHT_QUESTION)
                first = False
            else:
                if part[-1] == v.dot_newline[0]:
                    part = part[:-1] + [v.dot]
                elif part[-1] == v.newline:
                    part = part[:-1]
                put(part + [v.end if chat else v.eos], WEIGHT_ANSWER)
                if chat:
                    put([v.newline], WEIGHT_QUESTION)
        return np.array(out, dtype=np.uint16), np.array(weights, dtype=np.uint8)


def pack(documents, length: int, code, v: Vocabulary, rng):
    """Rows [n, length + 1] of ids and of weights. Every row begins with BOS; the documents of a row are
    in random order, with a window of code that fills the rest."""
    rows, row_weights, open_rows = [], [], []

    def close(parts, free):
        if free > 0:
            start = int(rng.integers(0, len(code) - free - 1))
            filler = code[start:start + free].copy()
            filler[-1] = v.eos
            parts.append((filler, np.full(free, WEIGHT_CODE, np.uint8)))
        order = [parts[i] for i in rng.permutation(len(parts))]
        pieces = [(np.array([v.bos], np.uint16), np.zeros(1, np.uint8)), *order]
        rows.append(np.concatenate([p[0] for p in pieces]))
        row_weights.append(np.concatenate([p[1] for p in pieces]))

    for document in documents:
        size = len(document[0])
        if size > length:
            continue
        best = min((r for r in open_rows if r[1] >= size), key=lambda r: r[1], default=None)
        if best is None:
            best = [[], length]
            open_rows.append(best)
        best[0].append(document)
        best[1] -= size
        if best[1] < 64 or len(open_rows) > 24:
            close(*open_rows.pop(min(range(len(open_rows)), key=lambda i: open_rows[i][1])))
    for parts, free in open_rows:
        if free < length // 2:
            close(parts, free)
    return np.stack(rows), np.stack(row_weights)
