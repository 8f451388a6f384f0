"""The page: with the keyboard, in both colour schemes, on narrow screens.

usage: page_accessibility_test.py PROGRAM MODEL_DIRECTORY [SCREENSHOTS]
Exits with 77 (skipped) if Playwright or Chromium is missing.
"""

import sys
import unittest

from page_browser import LONG, Page, expect, send, set_fields, wait_done

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


class Accessibility(Page):
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


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0]], verbosity=2)
