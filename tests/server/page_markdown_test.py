"""The page: answers drawn as Markdown, and copied.

usage: page_markdown_test.py PROGRAM MODEL_DIRECTORY [SCREENSHOTS]
Exits with 77 (skipped) if Playwright or Chromium is missing.
"""

import json
import sys
import unittest

from page_browser import TESTS, Page, answer, expect, send, wait_done

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


class Markdown(Page):
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


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0]], verbosity=2)
