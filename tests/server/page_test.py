"""The server's page in headless Chromium, with the program and the shipped model.

usage: page_test.py PROGRAM MODEL_DIRECTORY [SCREENSHOTS]
Exits with 77 (skipped) if Playwright or Chromium is missing.
"""

import json
import pathlib
import re
import shutil
import sys
import tempfile
import threading
import time
import unittest
import urllib.error

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


class Chat(Browser):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.server = Server("--kv-policy", "litecache", "--kv-budget", "10%")

    @classmethod
    def tearDownClass(cls):
        super().tearDownClass()
        cls.server.end()

    def test_a_conversation_with_its_history(self):
        page = self.open(self.server)
        bodies = []
        page.on("request", lambda r: bodies.append(json.loads(r.post_data)) if r.post_data else 0)
        set_fields(page, system="You write code.", temperature=0, max_tokens=24)
        send(page, "def add(a, b):")
        wait_done(page)
        messages = [{"role": "system", "content": "You write code."},
                    {"role": "user", "content": "def add(a, b):"}]
        whole = self.server.call("/v1/chat/completions",
                                 {"messages": messages, "temperature": 0, "max_tokens": 24})
        first = whole["choices"][0]["message"]["content"]
        expect(page.locator("article.assistant .note")).to_contain_text("tok/s")
        page.fill("#system", "")
        send(page, "def sub(a, b):")
        wait_done(page)
        self.assertEqual(bodies[-1]["messages"],
                         [messages[1], {"role": "assistant", "content": first},
                          {"role": "user", "content": "def sub(a, b):"}])
        self.shot(page, "conversation")
        page.click("#clear")
        expect(page.locator("article")).to_have_count(0)
        send(page, "x")
        wait_done(page)
        self.assertEqual(len(bodies[-1]["messages"]), 1)

    def test_streaming_and_stopping(self):
        page = self.open(self.server)
        never_end(page)
        set_fields(page, max_tokens=20000)
        # Not page.click(), which waits for frames that a busy page draws late, when the answer may have ended.
        stops = (lambda: page.locator("#stop").dispatch_event("click"), lambda: page.keyboard.press("Escape"))
        for count, stop in enumerate(stops, 1):
            send(page, "class Queue:")
            text = page.locator("article.assistant .text").last
            expect(page.locator("article.assistant")).to_have_count(count)
            wait_length(page, 200)
            wait_length(page, len(text.text_content()))
            stop()
            wait_done(page)
            expect(page.locator("article.assistant .note").last).to_contain_text("stopped")
            self.server.wait_idle()
        # Leaving the page also ends its request.
        send(page, "class Stack:")
        expect(page.locator("article.assistant")).to_have_count(3)
        wait_length(page, 20)
        page.close()
        self.server.wait_idle()

    def test_the_heat_map_shows_the_counters(self):
        page = self.open(self.server)
        never_end(page)
        cells = page.locator("#heat tbody td")
        set_fields(page, max_tokens=20000)
        page.select_option("#mode", "text")
        send(page, LONG)
        until(
            page, "[...document.querySelectorAll('#heat tbody td')].some(c => c.textContent !== '')")
        page.check("input[value=all]")
        # It is drawn again and again while the answer grows; shares of all lookups soon change no more.
        page.wait_for_timeout(1000)
        self.shot(page, "generating")
        stop(page)
        self.server.wait_idle()
        heads = self.server.call("/stats")["heads"]
        expected = [f"{int(100 * hits / lookups + 0.5)}" if lookups else ""
                    for hits, lookups in zip(heads["hits"], heads["lookups"])]
        self.assertTrue(any(expected))
        expect(cells).to_have_text(expected)
        # The table handles arrow keys; the line below names the cell.
        page.locator("#heat tbody td[tabindex='0']").focus()
        for key in ("ArrowDown", "ArrowDown", "ArrowRight"):
            page.keyboard.press(key)
        at = 2 * heads["kv_heads"] + 1
        expect(page.locator("#heat-detail")).to_contain_text("Layer 2, head 1")
        if heads["lookups"][at]:
            expect(page.locator("#heat-detail")).to_contain_text(f"{heads['hits'][at]:,} of")
        moved = self.server.call("/stats")["kv"]["moved"]
        rows = page.locator("#moved tbody tr")
        expect(rows).to_have_count(len(moved))
        for i, kind in enumerate(moved):
            expect(rows.nth(i).locator("td").nth(2)).to_have_text(f"{moved[kind]['rows']:,}")
        self.assertGreater(moved["miss"]["rows"], 0)

    def test_the_progress_of_a_prompt_and_the_tiers(self):
        page = self.open(self.server)
        never_end(page)
        set_fields(page, max_tokens=20000)
        page.select_option("#mode", "text")
        page.evaluate(NOTE_PROGRESS)
        send(page, LONG * 4)
        until(page, "document.body.dataset.progress > 0")
        self.shot(page, "prefill")
        until(page, "+document.getElementById('host-bar').getAttribute('aria-valuenow') > 0")
        expect(page.locator("progress")).to_have_count(0)
        stop(page)
        expect(page.locator("progress")).to_have_count(0)

    def test_with_the_keyboard_alone(self):
        page = self.open(self.server)
        press = page.keyboard.press

        def focused():
            return page.evaluate("document.activeElement.id || document.activeElement.className ||"
                                 " document.activeElement.tagName")

        self.assertEqual(focused(), "input")
        page.locator(".skip").focus()
        self.shot(page, "skip")
        press("Enter")
        self.assertEqual(focused(), "input")
        page.keyboard.type("import")
        press("Shift+Enter")
        page.keyboard.type("from")
        self.assertEqual(page.input_value("#input"), "import\nfrom")
        press("Tab")
        self.assertEqual(focused(), "send")
        press("Tab")
        press("Tab")
        self.assertEqual(focused(), "attach")
        press("Tab")
        self.assertEqual(focused(), "SUMMARY")
        press("Enter")
        reached = []
        for _ in range(4):
            press("Tab")
            reached.append(focused())
        self.assertEqual(reached, ["mode", "temperature", "max-tokens", "system"])
        press("Shift+Tab")
        page.keyboard.type("20")
        for _ in range(6):
            press("Shift+Tab")
        self.assertEqual(focused(), "send")
        press("Space")
        wait_done(page)
        self.assertEqual(focused(), "input")
        expect(page.locator("article")).to_have_count(2)
        # Continues to the log and the engine's controls.
        reached = set()
        for _ in range(14):
            press("Tab")
            reached.add(focused())
        self.assertIn("log", reached | {(press("Shift+Tab"), focused())[1] for _ in range(16)})

    def test_light_and_dark_can_be_read(self):
        for scheme in ("light", "dark"):
            page = self.open(self.server, color_scheme=scheme)
            set_fields(page, max_tokens=120, system="You write code.")
            send(page, LONG)
            wait_done(page)
            page.check("input[value=all]")
            page.wait_for_timeout(700)
            page.evaluate("document.getElementById('log').scrollTop = 1e6")
            self.shot(page, scheme)
            background = page.evaluate(CONTRAST, "body")
            self.assertEqual(background["dark"], scheme == "dark")
            for selector, least in (("body", 4.5), ("#model", 4.5), (".user .text", 4.5),
                                    (".assistant .note", 4.5), ("#send", 4.5), ("#clear", 4.5),
                                    ("#keys", 4.5), ("#moved th", 4.5), ("dt", 4.5),
                                    ("#heat tbody td:not(.none)", 4.5)):
                worst = page.evaluate(CONTRAST, selector)["contrast"]
                self.assertGreaterEqual(worst, least, f"{selector} in {scheme}")

    def test_narrow_screens(self):
        page = self.open(self.server, viewport={"width": 360, "height": 640}, has_touch=True,
                         is_mobile=True, device_scale_factor=2)
        set_fields(page, max_tokens=40)
        self.assertLessEqual(page.evaluate("document.documentElement.scrollWidth"), 360)
        page.evaluate("document.getElementById('settings').open = false")
        send(page, "def " + "very_long_name_" * 20 + "():")
        wait_done(page)
        self.shot(page, "narrow")
        self.assertLessEqual(page.evaluate("document.documentElement.scrollWidth"), 360)
        expect(page.locator("#send")).to_be_in_viewport()
        expect(page.locator("#heat")).not_to_be_in_viewport()
        page.click("#to-engine")
        expect(page.locator("#decode-rate")).to_be_in_viewport()
        self.assertLessEqual(page.evaluate("document.documentElement.scrollWidth"), 360)
        self.shot(page, "narrow-engine", full=True)

    def test_markup_stays_text(self):
        page = self.open(self.server)
        text = "<img src=x onerror=alert(1)><b>bold</b>"
        answer(page, text, "\n```html\n", text, "\n```\nend")
        send(page, text)
        wait_done(page)
        self.assertEqual(page.locator(".user .text").text_content(), text)
        self.assertEqual(page.locator(".assistant pre").text_content(), text)
        self.assertEqual(page.locator("#log img, #log b").count(), 0)

    def test_markdown(self):
        page = self.open(self.server)
        text = (TESTS / "page_markdown.txt").read_text()
        expected = json.loads((TESTS / "page_markdown.json").read_text())
        for size in (1, 7, len(text)):
            self.assertEqual(page.evaluate(DRAW, [text, size]), expected, size)
        answer(page, *text)
        send(page, "x")
        wait_done(page)
        self.shot(page, "markdown")
        # Links name where they lead, and nothing that runs is a link.
        links = page.locator(".assistant .text a")
        self.assertEqual(links.evaluate_all("all => all.map("
                                                  "a => [a.href, a.target, a.rel, a.dataset.host ?? ''])"),
                         [[url, "_blank", "noopener noreferrer nofollow", host] for url, host in
                          (("https://example.org/a_(b)", "example.org"),
                           ("https://example.org/plain", ""),
                           ("https://example.org/image.png", "example.org"),
                           ("https://example.org/", ""))])

    def test_markdown_of_any_text_takes_linear_time(self):
        page = self.open(self.server)
        # Quadratic time for these would be hours.
        for piece in ("*a ", "_a **b ", "[a](", "[", "`a``b", "> ", "- ", "- a\n", "|a", "~~~", "http://.",
                      "\\[ ](x \"", "\n\n", "- \n\n"):
            depth = page.evaluate("""async piece => {
              const {Markdown} = await import('./page/markdown.js');
              const target = document.createElement('div');
              const drawn = new Markdown(target);
              drawn.append(piece.repeat(100000));
              drawn.finish();
              const depth = node => 1 + Math.max(0, ...[...node.children].slice(0, 100).map(depth));
              return depth(target);
            }""", piece)
            self.assertLess(depth, 60, piece)

    def test_copying(self):
        for api in (True, False):  # without it: the page of a server that is not this machine
            page = self.open(self.server, permissions=["clipboard-read", "clipboard-write"])
            if not api:
                page.evaluate("Object.defineProperty(navigator, 'clipboard', {value: undefined})")
            text = "Try **this**:\n\n```py\nx = 1\n\nprint(x)\n```\n\nand\n\n```\nnot ended"
            answer(page, text)
            send(page, "x")
            wait_done(page)
            copies = page.get_by_role("button", name="Copy")
            for i, expected in enumerate(("x = 1\n\nprint(x)", "not ended", text)):
                copies.nth(i).click()
                expect(page.get_by_role("button", name="Copied")).to_have_count(1)
                page.fill("#input", "")
                expect(page.get_by_role("button", name="Copied")).to_have_count(0)
                page.press("#input", "Control+v")
                expect(page.locator("#input")).to_have_value(expected)
            page.fill("#input", "")

    def test_editing_and_regenerating(self):
        page = self.open(self.server)
        bodies = answer(page, "an answer")
        send(page, "first")
        wait_done(page)
        send(page, "second")
        wait_done(page)

        def asked():
            return [message["content"] for message in bodies[-1]["messages"]]

        def shown():
            return page.locator("article .text").all_inner_texts()

        page.get_by_role("button", name="Regenerate").last.click()
        wait_done(page)
        self.assertEqual(len(bodies), 3)
        self.assertEqual(asked(), ["first", "an answer", "second"])
        edit = page.get_by_role("button", name="Edit")
        field = page.locator("article textarea")
        # Escape leaves everything as it was; an empty text is not sent.
        edit.first.click()
        expect(field).to_have_value("first")
        field.fill("")
        field.press("Enter")
        expect(field).to_be_visible()
        field.press("Escape")
        expect(field).to_have_count(0)
        self.assertEqual(shown(), ["first", "an answer", "second", "an answer"])
        # What followed the message is asked anew.
        edit.first.click()
        field.fill("changed")
        self.shot(page, "edit")
        field.press("Enter")
        expect(page.locator("article")).to_have_count(2)
        wait_done(page)
        self.assertEqual(asked(), ["changed"])
        self.assertEqual(shown(), ["changed", "an answer"])
        # A refusal loses neither the conversation nor the changed text.
        page.unroute_all()
        page.route("**/v1/chat/completions", lambda route: route.fulfill(
            status=429, json={"error": {"message": "busy"}}))
        page.get_by_role("button", name="Regenerate").click()
        expect(page.locator("#error")).to_contain_text("busy")
        self.assertEqual(shown(), ["changed", "an answer"])
        edit.click()
        field.fill("again")
        page.get_by_role("button", name="Send").first.click()
        expect(page.locator("#error")).to_contain_text("busy")
        expect(field).to_have_value("again")
        page.get_by_role("button", name="Cancel").click()
        self.assertEqual(shown(), ["changed", "an answer"])

    def test_conversations_are_kept(self):
        page = self.open(self.server)
        bodies = answer(page, "an **answer**")
        kept = page.locator("#kept li button:first-child")

        def shown():
            return page.locator("article .text").all_inner_texts()

        expect(page.locator("#conversations")).to_be_hidden()
        for text in ("first question\nof two lines", "second question"):
            page.click("#clear")
            send(page, text)
            wait_done(page)
        page.click("#conversations summary")
        expect(kept).to_have_text(["second question", "first question"])
        # A reload shows the same conversation; one that is opened goes on where it was.
        page.reload()
        expect(page.locator("article")).to_have_count(2)
        self.assertEqual(shown(), ["second question", "an answer"])
        page.click("#conversations summary")
        kept.nth(1).click()
        self.assertEqual(shown(), ["first question\nof two lines", "an answer"])
        expect(page.locator(".assistant .note")).to_contain_text("first token after")
        send(page, "and then")
        wait_done(page)
        self.assertEqual([one["content"] for one in bodies[-1]["messages"]],
                         ["first question\nof two lines", "an **answer**", "and then"])
        expect(kept).to_have_text(["first question", "second question"])
        self.shot(page, "conversations")
        # Other tabs list them too; in a new tab the conversation is new.
        other = page.context.new_page()
        other.goto(page.url)
        other.click("#conversations summary")
        expect(other.locator("#kept li")).to_have_count(2)
        expect(other.locator("article")).to_have_count(0)
        # Only a confirmed deletion deletes; that of the open conversation leaves a new one.
        page.get_by_role("button", name="Delete first question").click()
        expect(kept).to_have_count(2)
        page.on("dialog", lambda dialog: dialog.accept())
        page.get_by_role("button", name="Delete first question").click()
        expect(kept).to_have_text(["second question"])
        expect(page.locator("article")).to_have_count(0)
        expect(other.locator("#kept li")).to_have_count(1)
        page.get_by_role("button", name="Delete second question").click()
        expect(page.locator("#conversations")).to_be_hidden()
        self.assertEqual(page.evaluate("Object.keys(localStorage)"), ["litecache-conversations"])

    def test_an_answer_that_is_running_when_the_page_is_left_is_kept(self):
        page = self.open(self.server)
        never_end(page)
        set_fields(page, max_tokens=20000)
        send(page, "class Queue:")
        wait_length(page, 50)
        page.reload()
        expect(page.locator(".assistant .note")).to_have_text("cut short")
        wait_length(page, 50)
        self.server.wait_idle()

    def test_a_full_browser_storage(self):
        page = self.open(self.server)
        answer(page, "an answer")
        send(page, "kept")
        wait_done(page)
        page.evaluate("""() => {
          for (let size = 1 << 22; size >= 1; size /= 2) {
            try {
              for (let i = 0; ; ++i) localStorage.setItem(`fill-${size}-${i}`, 'x'.repeat(size));
            } catch {}
          }
        }""")
        page.click("#clear")
        send(page, "too much")
        wait_done(page)
        expect(page.locator("#error")).to_contain_text("no room left")
        expect(page.locator("article")).to_have_count(2)
        page.click("#conversations summary")
        expect(page.locator("#kept li")).to_have_count(1)
        # With room it is kept again; what is not a conversation is not shown as one.
        page.evaluate("""() => {
          for (const key of Object.keys(localStorage)) if (key.startsWith('fill')) localStorage.removeItem(key);
        }""")
        page.get_by_role("button", name="Regenerate").click()
        wait_done(page)
        expect(page.locator("#error")).to_be_hidden()
        expect(page.locator("#kept li")).to_have_count(2)
        for broken in ("{", "null", "5", '{"chat": true}', '{"chat": true, "messages": [{"role": "user"}]}',
                       '{"chat": true, "messages": [null]}'):
            page.evaluate("""text => {
              for (const key of Object.keys(localStorage)) {
                if (key.startsWith('litecache-conversation-')) localStorage.setItem(key, text);
              }
            }""", broken)
            page.locator("#kept li button").first.click()
            expect(page.locator("#error")).to_contain_text("not there")
            page.click("#clear")
            expect(page.locator("#error")).to_be_hidden()
        page.evaluate("localStorage.setItem('litecache-conversations', '[5]')")
        page.reload()
        expect(page.locator("#state")).to_have_text("ready")
        expect(page.locator("#conversations")).to_be_hidden()

    def test_files_become_context(self):
        page = self.open(self.server)
        bodies = answer(page, "an answer")
        text = "def add(a, b):\n    return a + b"
        context = f"add.py:\n\n{text}\n\n"
        tokens = self.server.call("/tokenize", {"content": context, "add_special": False})["count"]
        self.assertGreater(tokens, 5)
        files = page.locator("#files li")

        def drop(*contents):
            return page.evaluate_handle("""contents => {
              const data = new DataTransfer();
              for (const [name, text] of contents) data.items.add(new File([text], name));
              return data;
            }""", contents)

        page.dispatch_event("#log", "drop", {"dataTransfer": drop(["add.py", text])})
        expect(files).to_contain_text([f"add.py · {tokens} tokens"])
        page.set_input_files("#file", [{"name": "b.txt", "mimeType": "text/plain", "buffer": b"two\n"},
                                       {"name": "c.txt", "mimeType": "text/plain", "buffer": b"three"}])
        expect(files).to_contain_text([f"add.py · {tokens} tokens", " tokens", " tokens"])
        page.get_by_role("button", name="Remove b.txt").click()
        expect(files).to_have_count(2)
        # Files that are no texts are refused.
        for content in (b"\xff\xfe", b"a\0b"):
            page.set_input_files("#file", [{"name": "d.bin", "mimeType": "", "buffer": content}])
            expect(page.locator("#error")).to_contain_text("d.bin is not a text")
            expect(files).to_have_count(2)
        self.shot(page, "files")
        # Beside the conversation nothing happens, and the page stays.
        page.dispatch_event("#engine", "drop", {"dataTransfer": drop(["add.py", text])})
        page.get_by_role("button", name="Remove c.txt").click()
        expect(files).to_have_count(1)
        send(page, "What is it?")
        wait_done(page)
        expect(page.locator("#files")).to_be_hidden()
        self.assertEqual(bodies[-1]["messages"], [{"role": "user", "content": context + "What is it?"}])
        self.assertEqual(page.locator(".user .text").inner_text(), "What is it?")
        expect(page.locator(".user .note").first).to_have_text(f"add.py · {tokens} tokens")
        # Kept with the message: after a reload, and where it is edited.
        page.reload()
        page.get_by_role("button", name="Edit").click()
        page.fill("article textarea", "Test it.")
        page.press("article textarea", "Enter")
        until(page, "document.querySelector('.user .text')?.textContent === 'Test it.'")
        wait_done(page)
        self.assertEqual(bodies[-1]["messages"], [{"role": "user", "content": context + "Test it."}])
        # What is not sent is not lost; a count that fails does not keep the file away.
        page.unroute_all()
        for path in ("**/tokenize", "**/v1/chat/completions"):
            page.route(path, lambda route: route.fulfill(status=429, json={"error": {"message": "busy"}}))
        page.dispatch_event("#log", "drop", {"dataTransfer": drop(["e.txt", "five"])})
        expect(page.locator("#error")).to_contain_text("tokens of e.txt are not counted")
        send(page, "again")
        expect(page.locator("#error")).to_contain_text("busy. Try again")
        expect(files).to_have_text(["e.txtRemove"])
        expect(page.locator("#input")).to_have_value("again")

    def test_a_text_that_is_too_long(self):
        page = self.open(self.server)
        text = "x = 1234567890\n" * 6000
        send(page, text)
        expect(page.locator("#error")).to_contain_text("too long for the model")
        self.shot(page, "error")
        # Nothing is lost, and the conversation continues.
        self.assertEqual(page.input_value("#input"), text)
        expect(page.locator("article")).to_have_count(0)
        set_fields(page, max_tokens=3)
        send(page, "x")
        wait_done(page)
        expect(page.locator("#error")).to_be_hidden()


# The progress of a visible progress bar, kept after it disappears.
NOTE_PROGRESS = """
() => new MutationObserver(() => {
  const bar = document.querySelector('progress');
  const position = bar && bar.offsetWidth > 0 ? bar.position : 0;
  if (position > (document.body.dataset.progress ?? 0)) document.body.dataset.progress = position;
}).observe(document.getElementById('log'), {subtree: true, childList: true, attributes: true})
"""

# A text drawn in pieces of `size` characters: its elements as [tag, contents...].
DRAW = """
async ([text, size]) => {
  const {Markdown} = await import('./page/markdown.js');
  const target = document.createElement('div');
  const drawn = new Markdown(target);
  for (let at = 0; at < text.length; at += size) drawn.append(text.slice(at, at + size));
  drawn.finish();
  target.normalize();
  const outline = node => node.nodeType === Node.TEXT_NODE ? node.data :
      [node.tagName.toLowerCase(), ...[...node.childNodes].map(outline)];
  return [...target.children].map(outline);
}
"""

CONTRAST = """
selector => {
  const canvas = new OffscreenCanvas(1, 1).getContext('2d', {willReadFrequently: true});
  const rgb = color => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = color;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const luminance = c => c.slice(0, 3).map(v => v / 255)
      .map(v => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
      .reduce((sum, v, i) => sum + v * [.2126, .7152, .0722][i], 0);
  const behind = element => {
    for (; element; element = element.parentElement) {
      const color = rgb(getComputedStyle(element).backgroundColor);
      if (color[3] > 0) return color;
    }
    return [255, 255, 255, 255];
  };
  let worst = 21;
  for (const element of document.querySelectorAll(selector)) {
    const text = luminance(rgb(getComputedStyle(element).color));
    const back = luminance(behind(element));
    worst = Math.min(worst, (Math.max(text, back) + .05) / (Math.min(text, back) + .05));
  }
  return {contrast: worst, dark: luminance(behind(document.body)) < .2};
}
"""


class Others(Browser):
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
