"""The page: conversations, their messages, and the browser that keeps them.

usage: page_conversation_test.py PROGRAM MODEL_DIRECTORY [SCREENSHOTS]
Exits with 77 (skipped) if Playwright or Chromium is missing.
"""

import json
import sys
import unittest

from page_browser import Page, answer, expect, never_end, send, set_fields, wait_done, wait_length


class Conversation(Page):
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


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0]], verbosity=2)
