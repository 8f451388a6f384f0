"""The page of a server with a key, of a busy one, without a chat template, and of one that goes away.

usage: page_servers_test.py PROGRAM MODEL_DIRECTORY [SCREENSHOTS]
Exits with 77 (skipped) if Playwright or Chromium is missing.
"""

import json
import pathlib
import re
import sys
import tempfile
import threading
import time
import unittest
import urllib.error

import program
from page_browser import DEADLINE, Browser, Server, expect, send, set_fields, wait_done


class Servers(Browser):
    def serve(self, *flags, **options):
        server = Server(*flags, **options)
        self.addCleanup(server.end)
        return server

    def test_a_key_is_asked_for(self):
        server = self.serve(key="open-sesame")
        page = self.open(server, ready=False)
        expect(page.locator("#key")).to_be_focused()
        self.shot(page, "key")
        page.keyboard.type("wrong")
        page.keyboard.press("Enter")
        expect(page.locator("#error")).to_contain_text("refuses this API key")
        page.fill("#key", "open-sesame")
        page.press("#key", "Enter")
        expect(page.locator("#state")).to_have_text("ready")
        expect(page.locator("#key-form")).to_be_hidden()
        expect(page.locator("#error")).to_be_hidden()
        # With policy full there is no heat map, but the reason is shown.
        expect(page.locator("#policy")).to_contain_text("--kv-policy litecache")
        set_fields(page, max_tokens=3)
        send(page, "x")
        wait_done(page)
        expect(page.locator("article")).to_have_count(2)
        # It is kept in the tab, for a reload, and nowhere else.
        page.reload()
        expect(page.locator("#state")).to_have_text("ready")
        self.assertEqual(page.evaluate("[JSON.stringify(localStorage).includes('sesame'), document.cookie]"), [False, ""])

    def test_a_server_that_is_busy(self):
        server = self.serve("--max-batch", "1", "--max-queue", "1")
        page = self.open(server)
        busy = []
        for _ in range(2):
            busy.append(threading.Thread(target=self.hold, args=(server,)))
            busy[-1].start()
            while server.call("/stats")["requests"]["sequences"] == 0:
                time.sleep(0.02)
        while server.call("/stats")["requests"]["waiting"] == 0:
            time.sleep(0.02)
        send(page, "hello")
        expect(page.locator("#error")).to_contain_text(re.compile(r"busy\. Try again in \d+ s"))
        self.assertEqual(page.input_value("#input"), "hello")
        self.held.set()
        for thread in busy:
            thread.join()
        server.wait_idle()

    def setUp(self):
        self.held = threading.Event()
        self.addCleanup(self.held.set)

    def hold(self, server):
        body = {"prompt": "x", "max_tokens": 20000, "ignore_eos": True, "stream": True}
        while True:
            try:
                with server.open("/v1/completions", body) as response:
                    response.readline()
                    self.held.wait(DEADLINE / 1000)
                return
            except urllib.error.HTTPError as error:
                # The previous request may still count as being read.
                if error.code != 429 or self.held.is_set():
                    raise

    def test_a_model_without_a_chat_template_continues_texts(self):
        with tempfile.TemporaryDirectory() as folder:
            for file in pathlib.Path(program.MODEL).iterdir():
                (pathlib.Path(folder) / file.name).symlink_to(file.resolve())
            path = pathlib.Path(folder) / "tokenizer_config.json"
            config = json.loads(path.read_text())
            del config["chat_template"]
            path.unlink()
            path.write_text(json.dumps(config))
            server = self.serve(model=folder)
            page = self.open(server)
            expect(page.locator("#mode-field")).to_be_hidden()
            set_fields(page, temperature=0, max_tokens=12)
            send(page, "def add(a, b):\n    return")
            wait_done(page)
            whole = server.call("/v1/completions", {"prompt": "def add(a, b):\n    return",
                                                    "temperature": 0, "max_tokens": 12})
            self.assertEqual(page.locator(".assistant .text").text_content(),
                             whole["choices"][0]["text"])

    def test_a_server_that_goes_away_and_comes_back(self):
        server = Server()
        page = self.open(server)
        server.end()
        expect(page.locator("#state")).to_have_text("not reached")
        send(page, "hello")
        expect(page.locator("#error")).to_contain_text("does not answer")
        self.assertEqual(page.input_value("#input"), "hello")
        again = self.serve(port=server.url.rsplit(":", 1)[1])
        expect(page.locator("#state")).to_have_text("ready")
        self.assertEqual(again.url, server.url)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0]], verbosity=2)
