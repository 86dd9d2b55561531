"""How well the text of a page can be read: contrasts as a browser computes them (WCAG 2.1, criterion 1.4.3)."""

from __future__ import annotations

from typing import Any

from tests.explore.browser import Browser

_SCRIPT = """
(() => {
  const parse = text => (text.match(/[\\d.]+/g) || [0, 0, 0, 0]).map(Number);
  const over = (top, below) => {
    const a = top.length > 3 ? top[3] : 1;
    return [0, 1, 2].map(k => top[k] * a + below[k] * (1 - a));
  };
  const behind = element => {
    const layers = [];
    for (let at = element; at; at = at.parentElement) {
      const rect = at instanceof SVGElement && at.tagName === "g" ? at.querySelector(":scope > rect") : null;
      layers.push(parse(rect ? getComputedStyle(rect).fill : getComputedStyle(at).backgroundColor));
    }
    return layers.reverse().reduce((below, top) => over(top, below), [255, 255, 255]);
  };
  const light = rgb => rgb.map(c => c / 255).map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, k) => sum + c * [0.2126, 0.7152, 0.0722][k], 0);
  const ratio = (a, b) => (Math.max(light(a), light(b)) + 0.05) / (Math.min(light(a), light(b)) + 0.05);
  const found = new Map();
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const element = node.parentElement;
    if (!node.data.trim() || !element.getClientRects().length || element.closest("style, script, title")) continue;
    const style = getComputedStyle(element), below = behind(element);
    const ink = over(parse(element instanceof SVGElement ? style.fill : style.color), below);
    const size = parseFloat(style.fontSize), large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    const key = [element.tagName, element.className.baseVal ?? element.className, ink, below].join(" ");
    found.set(key, {ratio: ratio(ink, below), needed: large ? 3 : 4.5, text: node.data.trim().slice(0, 30), key});
  }
  return [...found.values()];
})()
"""


def unreadable(page: Browser) -> list[dict[str, Any]]:
    """The texts that stand out too little, with their contrast; fails where there is no text at all."""
    found: list[dict[str, Any]] = page.evaluate(_SCRIPT)
    assert found
    return [text for text in found if text["ratio"] < text["needed"]]
