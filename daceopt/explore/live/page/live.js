// The page of a live session: plain DOM, no build. One transport is a WebSocket, another one a widget of Jupyter.
// All text of models is put in as text; nothing that comes from them is parsed as HTML.

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 168, HEIGHT = 44, MOST_LISTED = 200, AFTER_TYPING = 150;

function element(tag, attributes = {}, ...children) {
  const made = tag.startsWith("svg:") ? document.createElementNS(SVG, tag.slice(4)) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(name, value);
  }
  made.append(...children.filter(child => child !== null));
  return made;
}

const button = (text, onclick, attributes = {}) => element("button", {type: "button", onclick, ...attributes}, text);
const options = (names, chosen) => names.map(name => element("option", {value: name, selected: name === chosen}, name));
const labelled = (text, control) => element("label", {}, text, " ", control);

// -------------------------------------------------------------------- talking

class Talk {
  constructor(transport, hear) {
    this.transport = transport;
    this.hear = hear;
    this.number = 0;
    this.waiting = new Map();
    transport.listen(message => this.take(message));
  }

  take(message) {
    const waits = this.waiting.get(message.id);
    if (message.event) return this.hear(message);
    if (!waits) return;
    this.waiting.delete(message.id);
    if (message.error === undefined) waits.done(message.ok);
    else waits.fail(new Error(message.error));
  }

  ask(verb, args = {}) {
    const id = ++this.number;
    return new Promise((done, fail) => {
      this.waiting.set(id, {done, fail});
      this.transport.send({id, verb, arguments: args});
    });
  }
}

function socketTransport(closed) {
  const socket = new WebSocket(`ws://${location.host}/session`);
  const ready = new Promise(done => { socket.onopen = done; });
  socket.onclose = closed;
  return {
    send: message => ready.then(() => socket.send(JSON.stringify(message))),
    listen: hear => { socket.onmessage = event => hear(JSON.parse(event.data)); },
  };
}

function widgetTransport(model) {
  return {send: message => model.send(message), listen: hear => model.on("msg:custom", hear)};
}

// -------------------------------------------------------------------- drawings

function drawScene(scene, choose) {
  const view = {viewBox: `0 0 ${scene.width} ${scene.height}`, width: scene.width, height: scene.height};
  const svg = element("svg:svg", {...view, role: "group", "aria-label": `graph of ${scene.name}`});
  for (const line of scene.lines) {
    const look = `flow heat${line.heat}${line.back ? " back" : ""}`;
    const title = element("svg:title", {}, line.moved);
    svg.append(element("svg:path", {class: look, "stroke-width": line.width, d: line.path}, title));
  }
  for (const box of scene.boxes) svg.append(drawBox(box, choose));
  svg.addEventListener("keydown", event => moveFocus(svg, event));
  return svg;
}

function drawBox(box, choose) {
  const text = (y, content, look) => element("svg:text", {x: box.x, y: box.y + y, class: look}, content);
  if (box.kind === "end") return element("svg:g", {class: "end"}, text(HEIGHT / 2 + 5, box.label));
  const press = event => {
    if (event.type === "keydown" && event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    choose(box);
  };
  const name = `${box.kind} ${box.label}, ${box.detail}`;
  const place = {x: box.x - WIDTH / 2, y: box.y, width: WIDTH, height: HEIGHT, rx: 6};
  return element(
    "svg:g",
    {
      class: `${box.kind}${box.library ? " library" : ""}`, tabindex: 0, role: "button", "aria-label": name,
      "data-number": box.number, "data-x": box.x, "data-y": box.y, onclick: press, onkeydown: press,
    },
    element("svg:title", {}, box.hint), element("svg:rect", place), text(18, box.label), text(34, box.detail, "detail"),
  );
}

// arrows go to the nearest box in their direction
function moveFocus(svg, event) {
  const step = {ArrowUp: [0, -1], ArrowDown: [0, 1], ArrowLeft: [-1, 0], ArrowRight: [1, 0]}[event.key];
  const from = event.target.closest("g[role=button]");
  if (!step || !from) return;
  event.preventDefault();
  let best = null, least = Infinity;
  for (const box of svg.querySelectorAll("g[role=button]")) {
    const x = box.dataset.x - from.dataset.x, y = box.dataset.y - from.dataset.y;
    const along = x * step[0] + y * step[1], aside = Math.abs(x * step[1]) + Math.abs(y * step[0]);
    if (along > 0 && along + 3 * aside < least) [best, least] = [box, along + 3 * aside];
  }
  best?.focus();
}

function drawRoofline(data) {
  const wide = 420, high = 200, edge = 12, log = Math.log10;
  const ridges = data.rates.map(rate => rate.flops / data.bandwidths.memory);
  const x0 = log(Math.min(data.intensity, ...ridges)) - 1, x1 = log(Math.max(data.intensity, ...ridges)) + 1;
  const y1 = log(Math.max(data.reached, ...data.rates.map(rate => rate.flops))) + 0.3;
  const y0 = Math.min(log(data.reached) - 0.3, y1 - 4);
  const x = value => edge + (log(value) - x0) / (x1 - x0) * (wide - 2 * edge);
  const y = value => high - edge - (log(value) - y0) / (y1 - y0) * (high - 2 * edge);
  const svg = element("svg:svg", {class: "roofline", width: wide, height: high, role: "img", "aria-label": data.text});
  for (const {name, flops} of data.rates) for (const [what, bandwidth] of Object.entries(data.bandwidths)) {
    const left = Math.max(10 ** x0, 10 ** y0 / bandwidth), ridge = flops / bandwidth;
    const points = [[left, left * bandwidth], [ridge, flops], [10 ** x1, flops]];
    const path = points.map(([a, b]) => `${x(a).toFixed(1)} ${y(b).toFixed(1)}`).join("L");
    svg.append(element("svg:path", {class: `roof ${what}`, d: `M${path}`}, element("svg:title", {}, `${what}, ${name}`)));
  }
  const place = {cx: x(data.intensity), cy: y(data.reached), r: 6, class: data.timed ? "" : "hollow"};
  svg.append(element("svg:circle", place, element("svg:title", {}, data.text)));
  return svg;
}

// -------------------------------------------------------------------- the page

class Page {
  constructor(root, transport) {
    this.root = root;
    this.state = null;
    this.selected = null;
    this.where = {direction: "forward", module: 0, trail: []};
    this.talk = new Talk(transport, event => this.hear(event));
    this.build();
    this.do(async () => this.show(await this.talk.ask("state")));
  }

  build() {
    const part = (name, ...children) => element("section", {"aria-label": name, class: name}, ...children);
    this.title = element("h1", {}, "…");
    this.message = element("p", {role: "status", class: "message"});
    this.bar = element("progress", {hidden: true, "aria-label": "progress"});
    this.barText = element("span", {class: "quiet"});
    this.tools = element("div", {class: "tools"});
    this.walk = part("walk");
    this.graph = part("graph");
    this.list = part("kernels");
    this.kernel = part("kernel");
    this.comparison = part("comparison");
    const columns = element("div", {class: "columns"},
      element("div", {}, this.walk, this.comparison), element("div", {}, this.graph, this.list), this.kernel);
    const working = element("p", {class: "working"}, this.bar, " ", this.barText);
    this.root.replaceChildren(element("header", {}, this.title, this.tools, this.message, working), columns);
  }

  // what goes wrong is said in one line; the page goes on
  async do(work) {
    this.say("");
    try {
      return await work();
    } catch (error) {
      this.say(error.message, true);
      return undefined;
    }
  }

  say(text, wrong = false) {
    this.message.textContent = text;
    this.message.classList.toggle("wrong", wrong);
  }

  hear(event) {
    if (event.event === "state") this.show(event.state);
    else if (event.event === "progress") this.showProgress(event);
    else this.showProgress({verb: "", rows: []});
  }

  showProgress({verb, rows}) {
    const counted = rows.filter(row => row.total).at(-1);
    this.bar.hidden = !rows.length;
    if (counted) [this.bar.max, this.bar.value] = [counted.total, counted.done];
    else this.bar.removeAttribute("value");
    this.barText.textContent = rows.length ? `${verb}: ${rows.map(row => row.text).join(", ")}` : "";
  }

  show(state) {
    const kept = this.state?.version !== null && this.selected !== null ? this.state?.kernels[this.selected] : null;
    this.state = state;
    this.title.textContent = state.title;
    if (state.failure) return this.say(`${state.failure}: end the command, put this right and start it again`, true);
    if (state.version === null) return this.say("capturing the model …");
    if (this.message.textContent.startsWith("capturing")) this.say("");
    this.showProgress({verb: "", rows: []});
    const focused = this.root.contains(document.activeElement) ? document.activeElement.getAttribute("class") : "";
    this.showTools();
    this.showWalk();
    this.showList();
    if (!state.directions.includes(this.where.direction)) this.where = {direction: "forward", module: 0, trail: []};
    this.do(() => this.openModule(this.where.direction, this.where.module, this.where.trail));
    const same = kept && state.kernels.find(row => [1, 2, 3].every(k => row[k] === kept[k]));
    this.selected = null;
    this.kernel.replaceChildren(element("p", {class: "quiet"}, "Choose a kernel of the graph or of the list."));
    if (same) this.do(() => this.openKernel(same[0]));
    if (focused) this.focusAgain(focused);
    return undefined;
  }

  // what had the focus is drawn anew; what is gone or disabled gives it to the tools
  focusAgain(look) {
    const next = this.root.contains(document.activeElement) ? null : this.root.getElementsByClassName(look)[0];
    next?.focus();
    if (!this.root.contains(document.activeElement)) this.tools.querySelector("button:enabled")?.focus();
  }

  // ------------------------------------------------------------------ tools and the walk

  showTools() {
    const {state} = this, change = (verb, args) => this.do(() => this.talk.ask(verb, args));
    const can = {undo: state.versions.filter(v => !v.undone).length > 1, redo: state.versions.some(v => v.undone)};
    const branch = element("select", {onchange: event => change("branch", {name: event.target.value})},
      ...options(state.branches, state.branch));
    const fresh = element("input", {size: 12, placeholder: "new branch", "aria-label": "name of a new branch"});
    const steps = element("select", {class: "step"},
      element("optgroup", {label: "recipes"}, ...options(state.recipes, "auto")),
      ...[...new Set(state.steps.map(step => step.level))].map(level => element("optgroup", {label: level},
        ...options(state.steps.filter(step => step.level === level).map(step => step.name), "lower-operators"))));
    const file = element("input", {size: 14, value: "my_path", "aria-label": "name of the recipe file"});
    this.tools.replaceChildren(
      button("Undo", () => change("undo"), {disabled: !can.undo, class: "undo"}),
      button("Redo", () => change("redo"), {disabled: !can.redo, class: "redo"}),
      labelled("Branch", branch), fresh,
      button("Make", () => fresh.value && change("branch", {name: fresh.value}), {class: "make-branch"}),
      labelled("Step", steps),
      button("Apply", () => change("apply_step", {version: state.version, step: steps.value}), {class: "apply-step"}),
      labelled("Save as", file), ".py",
      button("Save", () => this.do(() => this.save(file.value, false)), {class: "save"}),
    );
  }

  async save(name, overwrite) {
    const answer = await this.talk.ask("save", {name, overwrite});
    if (answer.path) return this.say(`written: ${answer.path}`);
    this.say(`${answer.exists} exists. `);
    this.message.append(button("Overwrite it", () => this.do(() => this.save(name, true)), {class: "overwrite"}));
    return undefined;
  }

  showWalk() {
    const {state} = this;
    const rows = state.versions.map(v => element("tr",
      {class: v.undone ? "undone" : v.number === state.version ? "here" : "", "aria-current": v.number === state.version},
      ...[v.number, v.title + (v.undone ? " (undone)" : ""), v.sites ?? "", v.nodes, v.moved]
        .map(cell => element("td", {}, String(cell)))));
    const heads = ["", "change", "sites", "nodes", "moves"].map(name => element("th", {scope: "col"}, name));
    const line = (look, text) => element("p", {class: look}, text);
    this.walk.replaceChildren(element("h2", {}, `Session ${state.branch}`),
      element("table", {}, element("thead", {}, element("tr", {}, ...heads)), element("tbody", {}, ...rows)),
      ...state.almost.map(miss => line("quiet", `almost: ${miss}`)), ...state.notes.map(note => line("note", note)),
      line("quiet", state.limits));
    this.showComparison();
  }

  showComparison() {
    const {state} = this;
    const numbers = state.versions.map(v => `version ${v.number}`).filter(name => name !== `version ${state.version}`);
    const other = element("select", {class: "other"}, ...options(["captured", ...state.branches, ...numbers]));
    const seconds = element("input", {type: "number", min: 0.05, max: 60, step: "any", value: 1, size: 4});
    const result = element("div", {"aria-live": "polite"});
    const compare = () => this.do(async () => {
      const answer = await this.talk.ask("compare", {other: other.value, seconds: Number(seconds.value)});
      result.replaceChildren(element("pre", {class: "compared"}, answer.text), element("details", {},
        element("summary", {}, "graphs and schedules"), element("pre", {}, answer.details)));
    });
    this.comparison.replaceChildren(element("h2", {}, "Compare"), labelled("with", other), " ",
      labelled("seconds", seconds), " ", button("Compare", compare, {class: "compare"}), result);
  }

  // ------------------------------------------------------------------ the graph

  async openModule(direction, module, trail) {
    const scene = await this.talk.ask("scene", {version: this.state.version, direction, module})
      .catch(error => (module ? this.talk.ask("scene", {version: this.state.version, direction, module: 0})
        : Promise.reject(error)));
    this.where = {direction, module: scene.module, trail: scene.module ? trail : []};
    const open = async (number, way) => {
      await this.openModule(direction, number, way);
      this.graph.querySelector("g[role=button]")?.focus();
    };
    const choose = box => this.do(() => (box.kind === "part"
      ? open(box.number, [...this.where.trail, {name: scene.name, module: scene.module}])
      : this.openKernel(box.number)));
    const directions = this.state.directions.map(name => button(name, () => this.do(() => this.openModule(name, 0, [])),
      {"aria-pressed": String(name === direction)}));
    const crumbs = this.where.trail.map((crumb, k) => button(crumb.name,
      () => this.do(() => open(crumb.module, this.where.trail.slice(0, k))), {class: "crumb"}));
    this.graph.replaceChildren(element("h2", {}, "Graph"), element("nav", {"aria-label": "modules"}, ...directions,
      " ", ...crumbs, element("b", {}, scene.name), element("span", {class: "quiet"}, ` ${scene.text}`)),
      element("div", {class: "scroll"}, drawScene(scene, choose)));
    this.mark();
  }

  showList() {
    const body = element("tbody"), count = element("p", {class: "quiet"});
    const fill = text => {
      const fits = this.state.kernels.filter(row => `${row[2]} ${row[3]}`.toLowerCase().includes(text.toLowerCase()));
      body.replaceChildren(...fits.slice(0, MOST_LISTED).map(row => element("tr", {"data-number": row[0]},
        element("td", {}, button(row[2], () => this.do(() => this.openKernel(row[0])), {class: "open"})),
        ...[row[3], row[1], row[5], row[6] || "generated"].map(cell => element("td", {}, cell)))));
      count.textContent = fits.length > MOST_LISTED ? `${fits.length}, the first ${MOST_LISTED} are shown` : "";
      this.mark();
    };
    const filter = element("input", {type: "search", oninput: event => fill(event.target.value)});
    const heads = ["kernel", "from", "direction", "moves", "by"].map(name => element("th", {scope: "col"}, name));
    this.list.replaceChildren(element("h2", {}, `${this.state.kernels.length} kernels, ${this.state.moved}`),
      labelled("Filter", filter), element("div", {class: "scroll"}, element("table", {},
        element("thead", {}, element("tr", {}, ...heads)), body)), count);
    fill("");
  }

  mark() {
    const chosen = String(this.selected);
    for (const box of this.graph.querySelectorAll("g.kernel")) {
      box.classList.toggle("shown", box.dataset.number === chosen);
    }
    for (const row of this.list.querySelectorAll("tr[data-number]")) {
      row.classList.toggle("shown", row.dataset.number === chosen);
    }
  }

  // ------------------------------------------------------------------ one kernel

  async openKernel(number) {
    const at = {version: this.state.version, kernel: number};
    const still = () => this.selected === number && this.state.version === at.version;
    this.selected = number; // at once: a state that arrives before the answer opens this kernel again, not the one before
    this.mark();
    const shown = await this.talk.ask("kernel", at);
    if (!still()) return;
    const fact = text => element("p", {class: "quiet"}, text);
    const plot = element("div", {class: "plot"});
    const draw = data => data && plot.replaceChildren(drawRoofline(data),
      fact(`operations per second by operations per byte: ${data.text}`));
    draw(shown.roofline);
    const said = element("p", {"aria-live": "polite", class: "measured"});
    const seconds = element("input", {type: "number", min: 0.05, max: 60, step: "any", value: 0.5, size: 4});
    const measure = () => this.do(async () => {
      const answer = await this.talk.ask("measure", {...at, seconds: Number(seconds.value)});
      said.textContent = answer.text;
      draw(answer.roofline);
    });
    const code = element("pre", {class: "code"}, "…"), sites = element("div", {class: "sites"}, "looking …");
    const facts = [`${shown.direction}: ${shown.contents}`, shown.origin && `from ${shown.origin}`,
      `writes ${shown.writes}`, shown.library && `by ${shown.library}: ${shown.why}`, shown.work];
    this.kernel.replaceChildren(element("h2", {tabindex: -1}, shown.label), ...facts.filter(Boolean).map(fact), plot,
      labelled("seconds", seconds), " ", button("Measure", measure, {class: "measure"}), said,
      ...(shown.loops.length ? [this.editor(at, shown)] : []),
      element("h3", {}, "Transformations"), sites,
      element("h3", {}, "Schedule"), element("pre", {class: "schedule"}, shown.schedule || "none: a library call"),
      element("h3", {}, "C++"), code);
    this.talk.ask("code", at).then(answer => { code.textContent = answer.source; },
      error => { code.textContent = `// ${error.message}`; });
    const found = await this.talk.ask("sites", at);
    if (still()) this.showSites(sites, found);
  }

  showSites(place, found) {
    const apply = site => this.do(() => this.talk.ask("apply_site", {version: found.version, site}));
    const rows = found.sites.map(site => element("li", {}, button("Apply", () => apply(site.site),
      {class: "apply-site", "aria-label": `apply ${site.step} at ${site.text}`, "data-step": site.step}), " ",
      element("b", {}, site.step), ` at ${site.text}`));
    const list = (items, look) => element("ul", {class: look}, ...items);
    const misses = found.misses.map(miss => element("li", {}, element("b", {}, miss.step), ` ${miss.text}`));
    const failed = Object.entries(found.failures).map(([step, why]) => `${step} could not look: ${why}`);
    const lines = [...failed, found.late.length && `too late for ${found.late.join(", ")}`].filter(Boolean);
    place.replaceChildren(rows.length ? list(rows, "applies") : element("p", {}, "None applies here."),
      element("details", {open: true}, element("summary", {}, `${misses.length} that nearly do`), list(misses, "nearly")),
      ...lines.map(line => element("p", {class: "quiet"}, line)));
  }

  // loops by hand: each change is tried at once
  editor(at, shown) {
    const names = shown.loops.map(loop => loop.name);
    const kind = element("select", {class: "edit"}, ...options(this.state.edits));
    const loops = element("input", {class: "loops", value: names.at(-1), "aria-label": "loops, the outermost first"});
    const size = element("input", {class: "size", value: "32", size: 4, inputmode: "numeric"});
    const hardware = element("select", {class: "hardware"}, ...options(this.state.kinds, "vector"));
    const verdict = element("div", {"aria-live": "polite", class: "verdict"});
    const apply = button("Apply edit", () => this.do(() => this.talk.ask("apply_edit", wanted())),
      {class: "apply-edit", disabled: true});
    const wanted = () => ({...at, edit: kind.value, loops: loops.value.split(/[\s,]+/).filter(Boolean),
      value: {bind: hardware.value, reorder: ""}[kind.value] ?? size.value.trim()});
    const sized = labelled("size", size), bound = labelled("to", hardware);
    let latest = 0, timer = 0;
    const tryIt = async () => {
      const mine = ++latest;
      [sized.hidden, bound.hidden] = [["bind", "reorder"].includes(kind.value), kind.value !== "bind"];
      const answer = await this.talk.ask("try_edit", wanted()).catch(error => ({legal: false, text: error.message}));
      if (mine !== latest) return;
      apply.disabled = !answer.legal;
      verdict.replaceChildren(element("p", {class: answer.legal ? "legal" : "illegal"},
        answer.legal ? `legal: ${answer.step}` : answer.text),
      ...(answer.legal ? [element("pre", {}, answer.text)] : []));
    };
    const soon = () => { clearTimeout(timer); timer = setTimeout(tryIt, AFTER_TYPING); apply.disabled = true; };
    kind.addEventListener("change", () => {
      if (kind.value === "reorder") loops.value = [...names].reverse().join(", ");
      soon();
    });
    for (const control of [loops, size]) control.addEventListener("input", soon);
    hardware.addEventListener("change", soon);
    [sized.hidden, bound.hidden] = [false, true];
    const loopsText = shown.loops.map(loop => `${loop.name} < ${loop.extent} ${loop.kind}`).join("; ");
    const edit = element("details", {class: "editor"}, element("summary", {}, "Edit the loops by hand"),
      element("p", {class: "quiet"}, loopsText), labelled("Edit", kind), " ", labelled("loops", loops), " ", sized, " ",
      bound, " ", apply, verdict);
    edit.addEventListener("toggle", () => edit.open && tryIt());
    return edit;
  }
}

// -------------------------------------------------------------------- where it runs

export default {
  render({model, el}) {
    el.classList.add("daceopt-live");
    new Page(el, widgetTransport(model));
  },
};

const place = document.querySelector("main.daceopt-live[data-transport=socket]");
if (place) {
  const page = new Page(place, socketTransport(() => page.say(
    "the session has ended: start `python -m daceopt explore` again and open the address that it prints", true)));
}
