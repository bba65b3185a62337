"""What holds of the page in any state: nothing wider than the window, no accessibility fault."""

import functools
import importlib.resources
from typing import Any

from playwright.sync_api import Page

SERIOUS = ("serious", "critical")

# What sticks out of the window, without what an ancestor scrolls (only `pre` may).
_WIDER = """() => {
  const width = document.documentElement.clientWidth;
  const isCut = (element) => {
    for (let at = element.parentElement; at && at !== document.body; at = at.parentElement) {
      if (['auto', 'scroll'].includes(getComputedStyle(at).overflowX)) return true;
    }
    return false;
  };
  const found = [];
  for (const element of document.body.querySelectorAll('*')) {
    const box = element.getBoundingClientRect();
    const isOut = box.width && (box.right > width + 0.5 || box.left < -0.5);
    if (isOut && !element.ownerSVGElement && !isCut(element)) {
      found.push(`${element.tagName}.${element.className}: ${box.left}..${box.right}`);
    }
  }
  const root = document.scrollingElement;
  if (root.scrollWidth > width) found.push(`the page scrolls to ${root.scrollWidth} of ${width}`);
  // lists and panels scroll down, never sideways
  for (const element of document.body.querySelectorAll(':not(pre)')) {
    if (['auto', 'scroll'].includes(getComputedStyle(element).overflowX)
        && element.scrollWidth > element.clientWidth) {
      found.push(`${element.tagName}.${element.className} scrolls sideways`);
    }
  }
  return found;
}"""


def assert_no_overflow(page: Page) -> None:
    """Nothing sticks out of the window, and nothing but `pre` scrolls sideways."""
    found = page.evaluate(_WIDER)
    assert not found, "\n".join(found)


def assert_accessible(page: Page) -> None:
    """axe-core finds nothing serious or critical, in the WCAG 2.2 A and AA rules and its own."""
    if not page.evaluate("typeof window.axe === 'object'"):
        page.evaluate(_axe())
    found: list[dict[str, Any]] = page.evaluate(
        "async () => (await axe.run(document, {resultTypes: ['violations']})).violations")
    faults = [f"{v['id']}: {v['help']}: {[n['html'][:200] for n in v['nodes'][:3]]} "
              f"{v['nodes'][0]['failureSummary'][:300]}"
              for v in found if v["impact"] in SERIOUS]
    assert not faults, "\n".join(faults)


@functools.cache
def _axe() -> str:
    return importlib.resources.files("axe_playwright_python").joinpath(
        "axe.min.js").read_text("utf-8")
