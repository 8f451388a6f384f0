"""The page: text files that become context.

usage: page_attachments_test.py PROGRAM MODEL_DIRECTORY [SCREENSHOTS]
Exits with 77 (skipped) if Playwright or Chromium is missing.
"""

import sys
import unittest

from page_browser import Page, answer, expect, send, until, wait_done


class Attachments(Page):
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


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0]], verbosity=2)
