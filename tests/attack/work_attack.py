"""Requests that need much work or memory: others must be served meanwhile, and memory must be released.

usage: work_attack.py PROGRAM MODEL_DIRECTORY
"""

import json
import pathlib
import select
import sys
import threading
import time
import urllib.error
import urllib.request

import mutants
import victim
from victim import MIB

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tokenizer_jinja"))
import random_templates  # noqa: E402


class Fairness(victim.Attack):
    FLAGS = ("--api-key", "one", "--api-key", "two")

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.victim.key = "two"  # the key of the test's own calls

    def ask(self, key, body):
        request = urllib.request.Request(
            self.victim.url + "/tokenize", data=body,
            headers={"Content-Type": "application/json", "Authorization": "Bearer " + key})
        with urllib.request.urlopen(request, timeout=victim.program.PATIENCE) as answer:
            return json.load(answer)["count"]

    def test_small_requests_do_not_wait_for_large_ones(self):
        large = json.dumps({"prompt": "def f(a, b): return a + b\n" * 400_000}).encode()
        ended = []
        threads = [threading.Thread(target=self.try_ask, args=(large, ended)) for _ in range(4)]
        for thread in threads:
            thread.start()
        before = self.victim.cpu()
        self.assertTrue(victim.wait_for(lambda: self.victim.cpu() - before > 0.5))
        longest = 0
        for key in ("one", "two") * 3:  # a client's own large requests do not delay it either
            begun = time.time()
            self.assertGreater(self.ask(key, b'{"prompt": "x"}'), 0)
            took = time.time() - begun
            if longest == 0:
                time.sleep(0.1)  # for the thread of a large one that has ended
                self.assertEqual(ended, [], "a small request has waited for a large one")
            longest = max(longest, took)
        print(f"longest wait of a small request: {longest:.2f} s")
        self.assertLess(longest, 3)
        self.ask("two", large)
        self.assertLess(len(ended), 4, "a large request has waited for all large ones of another client")
        for thread in threads:
            thread.join()

    def try_ask(self, body, ended):
        try:
            self.ask("one", body)
            ended.append(time.time())
        except urllib.error.HTTPError as error:  # the memory reserved for bodies is used up
            error.close()


class Memory(victim.Attack):
    def test_hopeless_prompts_are_refused_by_their_size(self):
        text = "word " * 6_000_000
        self.refuse("/v1/completions", {"prompt": text, "max_tokens": 1}, "bytes")
        self.refuse("/v1/chat/completions", {"messages": [{"role": "user", "content": text}]}, "bytes")

    def test_long_prompts_are_not_encoded_to_their_end(self):
        limit = self.victim.call("/props")["memory"]["largest_context"]
        text = "a1 " * (limit * 8)
        # The tokenizer says it, before it knows their number; the engine would name all of them.
        self.refuse("/v1/completions", {"prompt": text, "max_tokens": 1}, "the text has more than")

    def test_answers_larger_than_what_is_set_aside(self):
        body = {"prompt": "x", "max_tokens": 30_000, "n": 64, "logprobs": 20, "temperature": 1}
        self.refuse("/v1/completions", body, "fewer")
        self.refuse("/v1/completions", {**body, "prompt": ["x"] * 64, "n": 1}, "fewer")

    def test_many_bodies(self):
        before = self.victim.resident()
        body = b'{"prompt": "' + b"x" * (30 * MIB)  # never ends
        head = victim.request_bytes("/tokenize", b"", f"Content-Length: {31 * MIB}", length=False)
        held = []
        for _ in range(16):
            connection = self.victim.connect()
            try:
                connection.sendall(head + body)
            except OSError:  # the connection was refused
                pass
            held.append(connection)
        self.assertEqual(self.victim.post("/tokenize", {"prompt": "x"})[0], 200)
        # 256 MiB of bodies: eight of these, and the others are answered before they have come to an end.
        self.assertTrue(victim.wait_for(lambda: len(select.select(held, [], [], 0)[0]) >= 8),
                        "more bodies are taken than are allowed for")
        grown = self.victim.resident() - before
        print(f"16 bodies of 30 MiB: {grown / MIB:.0f} MiB more")
        self.assertLess(grown, victim.MEMORY_FACTOR * 600 * MIB)
        for connection in held:
            connection.close()
        self.assertTrue(victim.wait_for(lambda: self.victim.resident() - before < victim.MEMORY_FACTOR * 100 * MIB),
                        f"{(self.victim.resident() - before) / MIB:.0f} MiB are not given back")

    def test_memory_is_given_back(self):
        small = {"prompt": "x"}
        self.victim.post("/tokenize", small)
        before = self.victim.resident()
        for _ in range(3):
            self.victim.post("/tokenize", {"prompt": "a b " * 2_000_000})
            self.victim.post("/detokenize", b'{"tokens": [' + b"1," * 1_900_000 + b"1]}")
            self.victim.post("/v1/completions", b'{"x": [' + b"[]," * 1_900_000 + b"0]}")
        self.assertTrue(victim.wait_for(lambda: self.victim.resident() - before < victim.MEMORY_FACTOR * 100 * MIB),
                        f"{(self.victim.resident() - before) / MIB:.0f} MiB are not given back")


class Templates(victim.Attack):
    FLAGS = ("--trust-chat-template",)

    def render(self, template, content="x", part=""):
        before = self.victim.resident()
        self.refuse("/tokenize", {"messages": [{"role": "user", "content": content}],
                                  "chat_template": template}, part)
        return self.victim.resident() - before

    def test_steps_are_charged_by_what_they_read(self):
        text = "ab" * (5 * MIB)
        for body in ("'zzz' in s", "s.find('zzz') > 0", "s.rfind('zzz') > 0", "s == s ~ ''",
                     "s|length > 5", "s.count('zz') > 1", "s.isalpha()", "s[-1] == 'b'", "s < s ~ 'a'",
                     "s.startswith(s)", "s.split('zz')", "s|upper", "s|replace('zz', '')",
                     "s[:2000000].split('a')", "s[:2000000]|list", "s[:2000000]|map('upper')|list"):
            self.render("{% set s = messages[0].content %}{% for i in range(100000) %}"
                        "{% if " + body + " %}{% endif %}{% endfor %}", text, "template")

    def test_searches_take_the_sum_of_the_lengths(self):
        template = ("{% set s = messages[0].content %}{% set t = s[:1000000] ~ 'b' %}"
                    "{{ 1 if BODY else 0 }}{{ raise_exception('done') }}")
        for body in ("t in s", "s.find(t) < 0", "s.rfind(t) < 0", "s.rfind('b' ~ t) < 0", "s.count(t)", "s.rsplit(t)"):
            self.render(template.replace("BODY", body), "a" * (4 * MIB), "done")

    def test_random_templates(self):
        """Templates of the whole language, over random variables, whole or with bytes changed."""

        def attempt(chance):
            generator = random_templates.Generator(chance.random())
            template = generator.template()
            if chance.random() < 0.5:
                template = mutants.damaged(chance, template.encode(), mutants.JINJA).decode(errors="replace")
            return self.send("/tokenize", json.dumps({
                "messages": [{"role": "user", "content": "x"}], "chat_template": template,
                "chat_template_kwargs": generator.context()}).encode())

        self.campaign("chat templates", 100, attempt)

    def test_values_that_share(self):
        grow = "{% set n = namespace(x=[1], y=[1]) %}{% for i in range(60) %}{% set n.x = [n.x, n.x] %}" \
               "{% set n.y = [n.y, n.y] %}{% endfor %}"
        for body in ("n.x == n.y", "n.x < n.y", "n.x in [n.y]", "[n.x, n.y]|sort"):
            self.render(grow + "{{ " + body + " }}", part="template")
        self.render(grow.replace("[n.x, n.x]", "(n.x, n.x)").replace("[1]", "(1,)") + "{% set d = {n.x: 1} %}", part="key")
        grown = self.render("{% set n = namespace(l=[]) %}{% for i in range(10000) %}"
                            "{% set n.l = n.l + [messages[0].content ~ i] %}{% endfor %}", "x" * (4 * MIB))
        self.assertLess(grown, victim.MEMORY_FACTOR * 1400 * MIB)


if __name__ == "__main__":
    victim.main()
