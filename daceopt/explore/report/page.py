"""What a report looks like, and the little that it does: no file of the network, light and dark."""

from __future__ import annotations

STYLE = """
.daceopt-report { --ink: #1c2430; --paper: #fff; --quiet: #667085; --head: #475467; --edge: #e4e7ec; --line: #eaecf0 }
.daceopt-report { --weight: #98a2b3; --bar: #2e90fa; --link: #175cd3; --link-soft: #eff8ff; --code: #f9fafb }
.daceopt-report { --bad: #d92d20; --bad-ink: #b42318; --bad-soft: #fef3f2; --note: #dc9a06; --note-soft: #fffaeb }
.daceopt-report { --good: #067647; --good-soft: #ecfdf3; --box: #f5f8ff; --part: #f4f3ff; --part-edge: #7a5af8 }
.daceopt-report { --heat0: #d0d5dd; --heat1: #b2ccff; --heat2: #fdb022; --heat3: #f97316; --heat4: #d92d20 }
@media (prefers-color-scheme: dark) {
.daceopt-report { --ink: #e6e9ef; --paper: #12161d; --quiet: #98a2b3 }
.daceopt-report { --head: #cdd5df; --edge: #364152; --line: #2a3342 }
.daceopt-report { --weight: #697586; --bar: #2e90fa; --link: #84adff; --link-soft: #12294f; --code: #1a202b }
.daceopt-report { --bad: #f97066; --bad-ink: #fda29b; --bad-soft: #3a1715; --note: #fdb022; --note-soft: #33260a }
.daceopt-report { --good: #75e0a7; --good-soft: #0c2f20; --box: #17233b; --part: #221d47; --part-edge: #9b8afb }
.daceopt-report { --heat0: #475467; --heat1: #3e5fa8; --heat2: #b57708; --heat3: #e0620d; --heat4: #f97066 }
}
.daceopt-report { font: 14px/1.45 system-ui, sans-serif; color: var(--ink); background: var(--paper) }
.daceopt-report { padding: 20px 24px; max-width: 1280px }
.daceopt-report h1 { font-size: 22px; margin: 0; overflow-wrap: anywhere }
.daceopt-report h2 { font-size: 15px; margin: 26px 0 8px }
.daceopt-report p { margin: 4px 0; overflow-wrap: anywhere }
.daceopt-report .quiet { color: var(--quiet); font-size: 12px; font-weight: normal; overflow-wrap: anywhere }
.daceopt-report .warning { background: var(--bad-soft); border-left: 3px solid var(--bad) }
.daceopt-report .warning { padding: 8px 12px; margin: 12px 0 }
.daceopt-report .note { background: var(--note-soft); border-left: 3px solid var(--note) }
.daceopt-report .note { padding: 8px 12px; margin: 8px 0 }
.daceopt-report .tiles { display: flex; flex-wrap: wrap; gap: 10px; margin-top: 16px }
.daceopt-report .tile { border: 1px solid var(--edge); border-radius: 8px; padding: 8px 14px; min-width: 120px }
.daceopt-report .tile b { display: block; font-size: 20px; font-variant-numeric: tabular-nums }
.daceopt-report .tile span { color: var(--quiet); font-size: 12px }
.daceopt-report .scroll { overflow-x: auto }
.daceopt-report table { border-collapse: collapse; width: 100%; margin: 0 }
.daceopt-report th { font-size: 12px; color: var(--head); font-weight: 600; cursor: pointer; white-space: nowrap }
.daceopt-report th:hover { color: var(--link) }
.daceopt-report th[aria-sort=ascending]::after { content: " \\25B2" }
.daceopt-report th[aria-sort=descending]::after { content: " \\25BC" }
.daceopt-report th, .daceopt-report td { padding: 5px 12px 5px 0; border-bottom: 1px solid var(--line) }
.daceopt-report th, .daceopt-report td { vertical-align: top; text-align: left }
.daceopt-report td { overflow-wrap: anywhere; min-width: 44px }
.daceopt-report td:first-child { min-width: 150px }
.daceopt-report .number { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums }
.daceopt-report .weight { height: 3px; background: var(--weight); border-radius: 2px; margin-left: auto }
.daceopt-report .bar { display: inline-block; width: 120px; height: 10px }
.daceopt-report .bar { background: var(--line); border-radius: 5px; overflow: hidden }
.daceopt-report .bar div { height: 100%; background: var(--bar) }
.daceopt-report .share { margin-left: 8px; font-variant-numeric: tabular-nums }
.daceopt-report summary { cursor: pointer; color: var(--link); font-size: 12px }
.daceopt-report pre { font: 12px/1.4 ui-monospace, monospace; background: var(--code); padding: 8px; max-width: 900px }
.daceopt-report pre { overflow: auto; max-height: 480px; margin: 4px 0; white-space: pre; color: var(--ink) }
.daceopt-report .how { border-radius: 8px; padding: 0 8px }
.daceopt-report .how { font-size: 12px; background: var(--good-soft); color: var(--good) }
.daceopt-report .how.lowered { background: var(--link-soft); color: var(--link) }
.daceopt-report .how.fallback { background: var(--bad-soft); color: var(--bad-ink) }
.daceopt-report .module { margin: 2px 0 2px 12px; border-left: 2px solid var(--line); padding-left: 8px }
.daceopt-report .graph > .module { margin-left: 0; border: 0; padding: 0 }
.daceopt-report svg { display: block; font: 12px system-ui, sans-serif }
.daceopt-report svg text { text-anchor: middle; fill: var(--ink) }
.daceopt-report svg .detail, .daceopt-report svg .end text { fill: var(--quiet); font-size: 10px }
.daceopt-report svg rect { fill: var(--box); stroke: var(--bar) }
.daceopt-report svg .library rect { stroke-dasharray: 4 2 }
.daceopt-report svg .part rect { fill: var(--part); stroke: var(--part-edge); stroke-width: 2 }
.daceopt-report svg .kernel, .daceopt-report svg .part { cursor: pointer }
.daceopt-report svg g:focus { outline: none }
.daceopt-report svg g:focus rect, .daceopt-report svg g:hover rect { stroke-width: 3 }
.daceopt-report svg .flow { fill: none; opacity: 0.8 }
.daceopt-report svg .back { stroke-dasharray: 5 4 }
.daceopt-report svg .heat0 { stroke: var(--heat0) }
.daceopt-report svg .heat1 { stroke: var(--heat1) }
.daceopt-report svg .heat2 { stroke: var(--heat2) }
.daceopt-report svg .heat3 { stroke: var(--heat3) }
.daceopt-report svg .heat4 { stroke: var(--heat4) }
.daceopt-report svg text.left { text-anchor: start }
.daceopt-report svg rect.event { fill: var(--bar); stroke: var(--paper); stroke-width: 0.4 }
.daceopt-report svg rect.share1 { fill: var(--heat2) }
.daceopt-report svg rect.share2 { fill: var(--part-edge) }
.daceopt-report svg rect.share3 { fill: var(--good) }
.daceopt-report svg rect.share4 { fill: var(--heat4) }
.daceopt-report svg rect.share5 { fill: var(--weight) }
.daceopt-report svg rect.share6 { fill: var(--heat1) }
.daceopt-report svg rect.share7 { fill: var(--heat3) }
.daceopt-report svg rect.communication { fill: var(--heat3) }
.daceopt-report svg rect.backward { fill: var(--part-edge) }
.daceopt-report svg g[data-marks] { cursor: pointer }
.daceopt-report svg g:hover rect.event { stroke: var(--ink); stroke-width: 1 }
.daceopt-report svg .grid { stroke: var(--line) }
.daceopt-report svg .roof { fill: none; stroke: var(--bad); stroke-width: 1.5 }
.daceopt-report svg .roof.caches { stroke-dasharray: 4 3 }
.daceopt-report svg circle { fill: var(--bar); fill-opacity: 0.6; stroke: var(--bar) }
.daceopt-report svg .backward circle { fill: var(--part-edge); stroke: var(--part-edge) }
.daceopt-report svg .hollow circle { fill: none; fill-opacity: 1 }
.daceopt-report svg .shown circle, .daceopt-report svg .shown rect.event { stroke: var(--ink); stroke-width: 3 }
.daceopt-report tr.shown td { background: var(--link-soft) }
"""

# A click on a heading sorts by that column: numbers fall first, text rises first, the next click turns it round.
SORT = """
for (const head of document.currentScript.parentElement.querySelectorAll("th")) head.onclick = () => {
  const column = head.cellIndex, body = head.closest("table").tBodies[0], rows = [...body.rows];
  const key = row => row.cells[column].dataset.order;
  const numeric = rows.some(row => key(row) !== undefined);
  const rising = head.ariaSort ? head.ariaSort === "descending" : !numeric;
  const text = row => row.cells[column].innerText;
  const compare = (a, b) => numeric ? key(a) - key(b) : text(a).localeCompare(text(b));
  for (const other of head.parentElement.cells) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", rising ? "ascending" : "descending");
  body.append(...rows.sort((a, b) => rising ? compare(a, b) : compare(b, a)));
};
"""

# A click on a box opens the drawing of that module, or the row of that kernel with its schedule and its C++.
SHOW = """
{
  const report = document.currentScript.parentElement;
  const open = found => {
    for (let at = found; at && at !== report; at = at.parentElement) if (at.tagName === "DETAILS") at.open = true;
    found.scrollIntoView({block: "center"});
  };
  const show = box => {
    const {opens, marks, shows = marks} = box.dataset;
    if (opens) return open(report.querySelector(`details[data-module="${opens}"]`));
    for (const other of report.querySelectorAll(".shown")) other.classList.remove("shown");
    for (const same of report.querySelectorAll(`g[data-marks="${shows}"]`)) same.classList.add("shown");
    const row = report.querySelector(`tr[data-kernel="${shows}"]`);
    row.classList.add("shown");
    for (const part of row.querySelectorAll("details")) part.open = true;
    open(row);
  };
  for (const box of report.querySelectorAll("g[role=button]")) {
    box.onclick = () => show(box);
    box.onkeydown = event => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); show(box); } };
  }
}
"""
