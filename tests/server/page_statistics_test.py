"""The page: the heat map, the rows moved, the memory tiers, the progress of a prompt.

usage: page_statistics_test.py PROGRAM MODEL_DIRECTORY [SCREENSHOTS]
Exits with 77 (skipped) if Playwright or Chromium is missing.
"""

import sys
import unittest

from page_browser import LONG, Page, expect, never_end, send, set_fields, stop, until

# The progress of a visible progress bar, kept after it disappears.
NOTE_PROGRESS = """
() => new MutationObserver(() => {
  const bar = document.querySelector('progress');
  const position = bar && bar.offsetWidth > 0 ? bar.position : 0;
  if (position > (document.body.dataset.progress ?? 0)) document.body.dataset.progress = position;
}).observe(document.getElementById('log'), {subtree: true, childList: true, attributes: true})
"""


class Statistics(Page):
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


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0]], verbosity=2)
