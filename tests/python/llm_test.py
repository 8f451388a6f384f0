"""litecache_llm.LLM: against Transformers' logits and tokens, and what its functions promise."""
import asyncio
import inspect
import json
import subprocess
import sys
import tempfile
import threading
import unittest
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

import litecache_llm
from litecache_llm import LLM, CapacityError, FileError, InvalidArgument, LiteCacheError, SamplingParams

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "models/litecache-demo-16m"
GREEDY = SamplingParams(temperature=0, max_tokens=12)
PROMPTS = ["def main(", "import os\n", "class Graph:\n", "for i in range("]


def byte_tokenizer(size):
    """A tokenizer.json whose `size` tokens are three special ones and bytes."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = [chr(b) for b in printable] + [chr(256 + i) for i in range(256 - len(printable))]
    special = ["<unk>", "<s>", "</s>"]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    added = [{"id": i, "content": t, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
             for i, t in enumerate(special)]
    vocabulary = {token: i for i, token in enumerate([*special, *letters][:size])}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None, "pre_tokenizer": level,
            "post_processor": None, "decoder": level,
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                      "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "vocab": vocabulary, "merges": []}}


class AgainstTransformers(unittest.TestCase):
    """tests/fixtures/models has the reference of every family; the conversion of arrays is the same for all."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        source = ROOT / "tests/fixtures/models/llama-llama3"
        for name in ("config.json", "model.safetensors"):
            (Path(cls.folder.name) / name).symlink_to(source / name)
        size = json.loads((source / "config.json").read_text())["vocab_size"]
        (Path(cls.folder.name) / "tokenizer.json").write_text(json.dumps(byte_tokenizer(size)))
        cls.reference = load_file(source / "reference.safetensors")
        cls.llm = LLM(cls.folder.name, device="cpu", threads=2)

    @classmethod
    def tearDownClass(cls):
        cls.llm.close()
        cls.folder.cleanup()

    def test_logits(self):
        expected = self.reference["logits"]
        for decode_from in (-1, 600):
            logits = np.asarray(self.llm.logits(self.reference["prompt"], self.reference["positions"], decode_from=decode_from))
            self.assertEqual(logits.shape, expected.shape)
            np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-4 * np.abs(expected).max())

    def test_score_agrees_with_logits(self):
        prompt = self.reference["prompt"]
        logits = np.asarray(self.llm.logits(prompt)).astype(np.float64)
        expected = logits - np.log(np.exp(logits - logits.max(1, keepdims=True)).sum(1, keepdims=True)) - logits.max(1, keepdims=True)
        expected = expected[np.arange(len(prompt) - 1), prompt[1:]]
        np.testing.assert_allclose(self.llm.score(prompt), expected, atol=1e-4)

    def test_greedy_tokens(self):
        greedy = self.reference["greedy"]
        output = self.llm.generate(self.reference["prompt"].tolist(),
                                   SamplingParams(temperature=0, max_tokens=len(greedy), ignore_eos=True))[0]
        self.assertEqual(output.outputs[0].token_ids, greedy.tolist())
        self.assertEqual(output.prompt_token_ids, self.reference["prompt"].tolist())
        self.assertIsNone(output.prompt)


class Demo(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        # Bit for bit the same answers alone and in a batch.
        cls.llm = LLM(DEMO, device="cpu", threads=2, max_context="4k", deterministic=True)

    @classmethod
    def tearDownClass(cls):
        cls.llm.close()

    def alone(self, prompt):
        return self.llm.generate(prompt, GREEDY)[0].outputs[0]

    def test_several_prompts(self):
        outputs = self.llm.generate(PROMPTS, GREEDY)
        self.assertEqual([o.prompt for o in outputs], PROMPTS)
        self.assertEqual([o.outputs[0] for o in outputs], [self.alone(prompt) for prompt in PROMPTS])
        self.assertEqual(outputs[0].usage["completion_tokens"], 12)
        ids = [self.llm.tokenize(prompt) for prompt in PROMPTS]
        self.assertEqual([o.outputs[0].text for o in self.llm.generate(ids, GREEDY)], [o.outputs[0].text for o in outputs])
        different = self.llm.generate(PROMPTS[:2], [SamplingParams(max_tokens=3), SamplingParams(max_tokens=5)])
        self.assertEqual([len(o.outputs[0].token_ids) for o in different], [3, 5])
        self.assertEqual(self.llm.generate([]), [])

    def test_sampling_parameters(self):
        params = SamplingParams(n=3, temperature=1.5, seed=7, max_tokens=20, logprobs=2)
        first, again = (self.llm.generate(PROMPTS[0], params)[0] for _ in range(2))
        self.assertEqual(first.outputs, again.outputs)
        self.assertEqual([o.index for o in first.outputs], [0, 1, 2])
        self.assertGreater(len({o.text for o in first.outputs}), 1)
        self.assertEqual(len(first.outputs[0].logprobs["token_logprobs"]), len(first.outputs[0].token_ids))
        stopped = self.llm.generate(PROMPTS[0], SamplingParams(temperature=0, max_tokens=50, stop=[":"]))[0].outputs[0]
        self.assertEqual(stopped.finish_reason, "stop")
        self.assertNotIn(":", stopped.text)
        token = self.alone(PROMPTS[0]).token_ids[0]
        banned = self.llm.generate(PROMPTS[0], SamplingParams(temperature=0, max_tokens=1, logit_bias={token: -100}))[0].outputs[0]
        self.assertNotEqual(banned.token_ids[0], token)
        chosen = self.llm.generate(PROMPTS[0], SamplingParams(max_tokens=9, structured_outputs={"choice": ["yes", "no"]}))[0].outputs[0]
        self.assertIn(chosen.text, ("yes", "no"))

    def test_logprobs_are_those_of_score(self):
        params = SamplingParams(temperature=0, max_tokens=12, logprobs=0)
        output = self.llm.generate(PROMPTS[1], params)[0]
        scores = self.llm.score(output.prompt_token_ids + output.outputs[0].token_ids)
        # bf16: a chunk of a prompt and single steps round differently.
        np.testing.assert_allclose(output.outputs[0].logprobs["token_logprobs"], scores[-12:], atol=0.1)

    def test_chat(self):
        messages = [{"role": "user", "content": "Answer in JSON."}]
        schema = {"type": "object", "properties": {"answer": {"enum": ["left", "right"]}}, "required": ["answer"],
                  "additionalProperties": False}
        output = self.llm.chat(messages, SamplingParams(temperature=0, max_tokens=60),
                               response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": schema}})
        self.assertIn(json.loads(output.text)["answer"], ("left", "right"))
        self.assertEqual(output.message, {"role": "assistant", "content": output.text})
        self.assertEqual(output.finish_reason, "stop")
        tool = {"type": "function", "function": {"name": "turn", "parameters": schema}}
        output = self.llm.chat(messages, SamplingParams(temperature=0, max_tokens=100), tools=[tool], tool_choice="required")
        self.assertEqual(output.tool_calls[0]["function"]["name"], "turn")
        self.assertIn(json.loads(output.tool_calls[0]["function"]["arguments"])["answer"], ("left", "right"))
        self.assertIn("Answer in JSON.", self.llm.apply_chat_template(messages))
        with_logprobs = self.llm.chat(messages, SamplingParams(temperature=0, max_tokens=3, logprobs=1))
        self.assertEqual(len(with_logprobs.choices[0]["logprobs"]["content"]), 3)

    def test_streams(self):
        whole = self.alone(PROMPTS[0])
        chunks = list(self.llm.stream(PROMPTS[0], GREEDY))
        self.assertEqual("".join(chunk.text for chunk in chunks), whole.text)
        self.assertEqual([token for chunk in chunks for token in chunk.token_ids], whole.token_ids)
        self.assertEqual(chunks[-1].finish_reason, "length")
        messages = [{"role": "user", "content": "Hello"}]
        said = "".join(chunk.text for chunk in self.llm.stream(messages, GREEDY))
        self.assertEqual(said, self.llm.chat(messages, GREEDY).text)

    def test_async_streams_run_together(self):
        async def text(prompt):
            return "".join([chunk.text async for chunk in self.llm.stream(prompt, GREEDY)])

        async def all_texts():
            return await asyncio.gather(*(text(prompt) for prompt in PROMPTS))

        self.assertEqual(asyncio.run(all_texts()), [self.alone(prompt).text for prompt in PROMPTS])

    def test_cancelling(self):
        long = SamplingParams(max_tokens=3000, ignore_eos=True, temperature=0)
        with self.llm.stream(PROMPTS[0], long) as stream:
            next(stream)
            stream.cancel()
            self.assertLess(sum(1 for _ in stream), 2999)
        with self.llm.stream(PROMPTS[0], long) as stream:
            next(stream)
        self.assertEqual(list(stream), [])

        async def interrupted():
            async def read():
                async for _ in self.llm.stream(PROMPTS[0], long):
                    pass
            task = asyncio.create_task(read())
            await asyncio.sleep(0)
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task
        asyncio.run(interrupted())

    def test_other_threads_run_meanwhile(self):
        done = threading.Event()
        started = threading.Event()

        def work():
            started.set()
            self.llm.generate(PROMPTS[0], SamplingParams(max_tokens=300, ignore_eos=True))
            done.set()
        thread = threading.Thread(target=work)
        thread.start()
        started.wait()
        turns = 0
        while not done.wait(0.001):
            turns += 1
        thread.join()
        # Without the lock's release there would be one in 0.2 s, the length of a call.
        self.assertGreater(turns, 5)

    def test_text_and_tokens(self):
        text = "Grüße, \0 \U0001f600\n"
        tokens = self.llm.tokenize(text, add_special_tokens=False)
        self.assertEqual(self.llm.detokenize(tokens), text)
        self.assertEqual(self.llm.tokenize(text)[1:], tokens)
        self.assertEqual(self.llm.score(tokens[:1]), [])

    def test_arrays_of_ids(self):
        texts = ["def main(", "import os"]
        many = [self.llm.tokenize(text) for text in texts]

        def generated(prompts):
            return [output.outputs[0].token_ids for output in self.llm.generate(prompts, GREEDY)]
        expected = generated(many)
        self.assertEqual(generated([np.array(ids) for ids in many]), expected)
        self.assertEqual(generated([list(np.array(ids, np.int32)) for ids in many]), expected)
        self.assertEqual(generated(np.array(many[:1])), expected[:1])
        self.assertEqual(generated(np.array(many[0])), expected[:1])
        self.assertEqual(generated([np.array(ids[:1]) for ids in many]), generated([ids[:1] for ids in many]))
        self.assertEqual(self.llm.detokenize(np.array(many[0][1:])), texts[0])
        self.assertEqual(self.llm.score(np.array(many[0])), self.llm.score(many[0]))
        for wrong in ([1.5], ["a"]):
            with self.assertRaises(TypeError):
                self.llm.detokenize(wrong)

    def test_statistics(self):
        self.llm.generate(PROMPTS[0], GREEDY)
        self.assertGreater(self.llm.stats()["tokens"]["generated"], 0)
        info = self.llm.info()
        self.assertEqual((info["vocab_size"], info["kv"]["policy"], info["memory"]["context_limit"]), (4096, "full", 4096))

    def test_errors_are_the_engine_s(self):
        for call, error, words in [
                (lambda: LLM("nowhere"), FileError, "nowhere: no such file or directory"),
                (lambda: LLM(DEMO, device="cpu", threadz=1), InvalidArgument, "'threadz' is not an option"),
                (lambda: LLM(DEMO, device="cpu", max_context="many"), InvalidArgument, "max_context: 'many'"),
                (lambda: LLM(DEMO, device="cpu", max_batch=[1]), TypeError, ""),
                (lambda: LLM(DEMO, device="cpu", max_context=4096, memory="1MiB"), CapacityError, "1"),
                (lambda: LLM(), InvalidArgument, "shape="),
                (lambda: LLM(DEMO, shape="llama3.1-8b"), InvalidArgument, "shape="),
                (lambda: LLM(shape="llama0"), InvalidArgument, "llama0"),
                (lambda: self.llm.generate([[1], [5000]]), InvalidArgument, "token id 5000"),
                (lambda: self.llm.generate([[]]), InvalidArgument, "an array of texts"),
                (lambda: self.llm.generate("a", SamplingParams(top_p=2)), InvalidArgument, "top_p"),
                (lambda: self.llm.generate(["a", "b"], [SamplingParams()]), InvalidArgument, "1 for 2 prompts"),
                (lambda: self.llm.generate("a " * 9000), LiteCacheError, "4096"),
                (lambda: self.llm.chat([]), InvalidArgument, "messages"),
                (lambda: self.llm.chat([{"role": "user"}]), InvalidArgument, "content"),
                (lambda: self.llm.stream("a", tools=[{}]), InvalidArgument, "conversation"),
                (lambda: self.llm.score([]), InvalidArgument, "no tokens"),
                (lambda: self.llm.logits([1, 2], []), InvalidArgument, "none"),
                (lambda: self.llm.logits([1, 2], [2]), InvalidArgument, "2"),
        ]:
            with self.assertRaises(error) as caught:
                call()
            self.assertIn(words, str(caught.exception))
        closed = LLM(DEMO, device="cpu", threads=1, max_context=256)
        closed.close()
        closed.close()
        with self.assertRaisesRegex(LiteCacheError, "closed"):
            closed.generate("a")


class Options(unittest.TestCase):
    def test_every_option_is_a_keyword(self):
        options = litecache_llm.options()
        names = {option["flag"].lstrip("-").replace("-", "_"): option["default"] for option in options}
        self.assertLessEqual(set(names), set(inspect.signature(LLM).parameters))
        self.assertIn("kv_policy", names)
        with LLM(DEMO, **{**names, "device": "cpu", "threads": 1, "max_context": "1k"}) as llm:
            self.assertEqual(len(llm.generate("a", SamplingParams(max_tokens=2, ignore_eos=True))[0].outputs[0].token_ids), 2)

    def test_their_types_are_up_to_date(self):
        made = subprocess.run([sys.executable, ROOT / "python/make_options.py"], check=True, capture_output=True, text=True).stdout
        self.assertEqual(made, (ROOT / "python/litecache_llm/_options.py").read_text(), "run python/make_options.py")

    def test_policy_litecache_reports_hits(self):
        with LLM(DEMO, device="cpu", threads=2, max_context="4k", kv_policy="litecache", budget=256, eta=0.8) as llm:
            llm.generate([[5 + i % 4000 for i in range(1500)]], SamplingParams(max_tokens=30, ignore_eos=True))
            stats = llm.stats()
            self.assertGreater(stats["kv"]["lookups"], 0)
            self.assertEqual(sum(stats["heads"]["hits"]), stats["kv"]["hits"])


class Command(unittest.TestCase):
    def run_command(self, *arguments):
        code = "import sys; from litecache_llm._command import main; sys.exit(main())"
        return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)

    def test_it_is_the_program(self):
        self.assertIn(litecache_llm.__version__, self.run_command("--version").stdout)
        result = self.run_command("generate", "--model", DEMO, "--device", "cpu", "--quiet", "-n", "3", "def main(")
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.assertTrue(result.stdout.strip())
        wrong = self.run_command("generat")
        self.assertEqual(wrong.returncode, 2)
        self.assertIn("Did you mean 'generate'?", wrong.stderr)


if __name__ == "__main__":
    unittest.main()
