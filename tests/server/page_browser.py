"""The server's page in headless Chromium: what its tests share.

Exits with 77 (skipped) if Playwright or Chromium is missing.
"""

import json
import pathlib
import shutil
import sys
import time
import unittest

try:
    from playwright.sync_api import expect, sync_playwright
except ImportError as error:
    print(f"skipped: {error}; scripts/setup-test-python installs tests/requirements.txt")
    sys.exit(77)

import program

TESTS = pathlib.Path(__file__).parent
SCREENSHOTS = pathlib.Path(sys.argv[3]) if len(sys.argv) > 3 else None
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
if CHROMIUM is None:
    print("skipped: there is no Chromium; scripts/setup browser installs Debian's")
    sys.exit(77)

# Deadlines are for hangs: an overloaded machine may be slow. Transient states (a prompt's progress, memory in use) are
# either held until they have been seen or recorded by the page.
DEADLINE = 180000  # ms
expect.set_options(timeout=DEADLINE)

# Long enough for heads to select rows: 10% of it plus the recent ones are fewer.
LONG = "".join(f"def function_{i}(value):\n    return value * {i * 37 % 101} + {i}\n\n"
               for i in range(60))


class Server(program.Server):
    """Without kept prefixes, which count as memory in use: nothing may be left."""

    def __init__(self, *flags, **options):
        super().__init__("--prefix-cache", "off", *flags, **options)

    def end(self):
        code = self.stop()
        assert code == 0, (code, self.log)

    def wait_idle(self):
        return self.wait_until(lambda stats: stats["requests"]["running"] == 0
                               and stats["kv"]["used"] == {"device": 0, "host": 0},
                               "something is left")


class Browser(unittest.TestCase):
    """A tab for each test; it loads nothing from other sites, and logs no errors."""

    @classmethod
    def setUpClass(cls):
        cls.playwright = sync_playwright().start()
        cls.browser = cls.playwright.chromium.launch(executable_path=CHROMIUM, timeout=DEADLINE)

    @classmethod
    def tearDownClass(cls):
        cls.browser.close()
        cls.playwright.stop()

    def open(self, server, ready=True, **options):
        options = {"viewport": {"width": 1280, "height": 800}, **options}
        context = self.browser.new_context(**options)
        self.addCleanup(context.close)
        page = context.new_page()
        page.set_default_timeout(DEADLINE)
        origin = server.url + "/"

        wrong = []

        def on_request(request):
            if not request.url.startswith(origin):
                wrong.append(request.url)

        def on_console(message):
            # The browser's message about an answer with an error status is expected.
            if message.type == "error" and "Failed to load resource" not in message.text:
                wrong.append(message.text)

        page.on("request", on_request)
        page.on("console", on_console)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        self.addCleanup(lambda: self.assertEqual(wrong, []))
        page.goto(origin)
        if ready:
            expect(page.locator("#state")).to_have_text("ready")
        return page

    def shot(self, page, name, full=False):
        if SCREENSHOTS is None:
            return
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=SCREENSHOTS / f"{name}.png", full_page=full)


def send(page, text):
    if len(text) < 1000:
        page.fill("#input", text)
    else:  # Playwright's fill takes minutes for a long text
        page.locator("#input").evaluate(
            "(field, text) => { field.value = text; field.dispatchEvent(new Event('input')); }", text)
    page.press("#input", "Enter")


def until(page, expression, argument=None):
    """Waits for a condition that must come true. (Playwright's own wait needs eval, which the page's policy forbids.)"""
    deadline = time.time() + DEADLINE / 1000
    while not page.evaluate(expression, argument):
        if time.time() > deadline:
            raise AssertionError(f"this does not come true: {expression}")
        page.wait_for_timeout(20)


def wait_length(page, length):
    """Waits until the answer has more characters."""
    until(page, "n => [...document.querySelectorAll('.assistant .text')].at(-1)?.textContent.length"
                " > n", length)


def wait_done(page):
    expect(page.locator("#send")).to_be_visible()


def stop(page):
    page.click("#stop")
    wait_done(page)


def set_fields(page, **fields):
    """Settings by their ids, with _ for -."""
    page.evaluate("document.getElementById('settings').open = true")
    for name, value in fields.items():
        page.fill("#" + name.replace("_", "-"), str(value))


def never_end(page):
    """Answers continue to the limit: the model would otherwise end them at any time."""
    def change(route):
        body = json.loads(route.request.post_data)
        body["ignore_eos"] = True
        route.continue_(post_data=json.dumps(body))
    page.route("**/v1/*completions", change)
    page.route("**/v1/chat/completions", change)


def answer(page, *pieces):
    """Every chat request is answered with these pieces. Returns the bodies of the requests, which grows."""
    bodies = []

    def fulfill(route):
        bodies.append(json.loads(route.request.post_data))
        events = [json.dumps({"choices": [{"delta": {"content": piece}}]}) for piece in pieces]
        route.fulfill(content_type="text/event-stream",
                      body="".join(f"data: {event}\n\n" for event in [*events, "[DONE]"]))

    page.route("**/v1/chat/completions", fulfill)
    return bodies


class Page(Browser):
    """Tests that share a server whose KV cache is sparse."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.server = Server("--kv-policy", "litecache", "--kv-budget", "10%")

    @classmethod
    def tearDownClass(cls):
        super().tearDownClass()
        cls.server.end()
