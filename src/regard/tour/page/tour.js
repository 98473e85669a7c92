"use strict";
// What moves on the page is computed here by the equations of regard.attend; a browser test compares the two.

const DATA = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);
const all = (selector, root = document) => [...root.querySelectorAll(selector)];
const sum = (numbers) => numbers.reduce((total, number) => total + number, 0);
const dot = (one, other) => sum(one.map((number, i) => number * other[i]));

// ---- The operator: the softmax of a score, applied to the values (eq. 1 and 3)
const LOG_KERNELS = {  // of d = |q - k| / width (eq. 5); the edge of the boxcar is decided on |q - k| itself
  gaussian: (d) => -d * d / 2,
  laplacian: (d) => -d,
  boxcar: (d, gap, width) => (gap <= width ? 0 : -Infinity),
  triangular: (d) => Math.log(Math.max(0, 1 - d)),
  epanechnikov: (d) => Math.log(Math.max(0, 1 - d * d)),
  tricube: (d) => 3 * Math.log(Math.max(0, 1 - d ** 3)),
  biweight: (d) => 2 * Math.log(Math.max(0, 1 - d * d)),
  cosine_kernel: (d) => (d < 1 ? Math.log(Math.cos(Math.PI * d / 2)) : -Infinity),
};

function softmax(scores) {
  const top = Math.max(...scores);
  if (top === -Infinity) return scores.map(() => 0);  // no key may be seen: no weight, and 0 is pooled
  const parts = scores.map((score) => Math.exp(score - top)), mass = sum(parts);
  return parts.map((part) => part / mass);
}

function attend(scores, values) {
  const weights = softmax(scores);
  return { weights, output: dot(weights, values) };
}

function regress(query, kernel, width) {  // eq. 4 on the chapter's samples
  const gaps = DATA.query.x.map((key) => Math.abs(query - key));
  return attend(gaps.map((gap) => LOG_KERNELS[kernel](gap / width, gap, width)), DATA.query.y);
}

function threeScores(spread, printed) {  // eq. 5, 7 and 8 in a plane (D = 2), the keys' norms stretched by the spread
  const { queries, keys, stretch } = DATA.norms, root = Math.SQRT1_2, scale = printed ? 1 : root;
  const long = keys.map((key, i) => key.map((part) => part * (1 + spread * stretch[i])));
  const each = (score) => queries.map((q) => softmax(long.map((k) => score(q, k))));
  return [
    each((q, k) => -scale / 2 * sum(q.map((part, i) => (part - k[i]) ** 2))),
    each((q, k) => (printed ? 2 : scale) * dot(q, k)),
    each((q, k) => root * dot(q, k)),
  ];
}

const moved = (one, other) =>  // the share of weight on other keys, the mean over queries
  sum(one.map((row, i) => sum(row.map((weight, j) => Math.abs(weight - other[i][j]))) / 2)) / one.length;
const entropy = (weights) => -sum(weights.map((w) => (w > 0 ? w * Math.log(w) : 0))) / Math.log(weights.length);

// ---- The state of the page is that of its controls; an address holds what differs from the beginning
const controls = all("input[name], select[name]"), sections = all("main > section");
const beats = sections.flatMap((one) => JSON.parse(one.dataset.beats).map((words) => ({ at: one.id, words })));
let at = sections[0].id, beat = -1;
const state = () => Object.fromEntries(
  controls.map((one) => [one.name, one.type === "checkbox" ? String(+one.checked) : one.value]));
const beginning = state();

function set(words) {
  const wanted = new URLSearchParams(words);
  for (const one of controls.filter((control) => wanted.has(control.name))) {
    if (one.type === "checkbox") one.checked = wanted.get(one.name) === "1";
    else one.value = wanted.get(one.name);
    if (one.selectedIndex === -1) one.selectedIndex = 0;  // an address may hold anything
  }
}

function address(station) {
  const held = state(), changed = Object.keys(held).filter((name) => held[name] !== beginning[name]);
  return "#" + new URLSearchParams([["at", station], ...changed.map((name) => [name, held[name]])]);
}

function refresh(only) {  // only: the station to be drawn anew, else all
  const held = state();
  document.documentElement.dataset.theme = held.theme;
  document.body.classList.toggle("lecture", held.lecture === "1");
  for (const section of sections) {
    section.classList.toggle("current", section.id === at);
    if (DRAW[section.id] && (!only || only === section.id)) DRAW[section.id](held);
  }
  for (const one of all("nav a")) one.toggleAttribute("data-current", one.dataset.at === at);
  for (const one of all("a.link")) one.href = address(one.closest("section").id);
  history.replaceState(null, "", address(at));
}

function go(words) {
  const wanted = new URLSearchParams(words).get("at");
  if (sections.some((one) => one.id === wanted)) at = wanted;
  set(words);
  refresh();
  if (wanted) $(at).scrollIntoView();
}

function step(by) {  // a lecture goes from beat to beat, through all stations
  const here = beats[beat]?.at === at ? beat + by : beats.findIndex((one) => one.at === at);
  beat = Math.min(Math.max(here, 0), beats.length - 1);
  go(`lecture=1&at=${beats[beat].at}&${beats[beat].words}`);
}

// ---- Drawing, in pixels of the place there is
const say = (id, words) => { $(id).textContent = words; };
const signed = (number) => (number < 0 ? "−" : "\u2007") + Math.abs(number).toFixed(2);
const percent = ([share, low, high, n]) =>
  `${(100 * share).toFixed(1)}% (${(100 * low).toFixed(1)} to ${(100 * high).toFixed(1)}, n = ${n})`;

function el(parent, name, attributes = {}, text = "") {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.textContent = text;
  return parent.appendChild(made);
}

const room = (id) => $(id).parentElement.clientWidth || 640;  // 0 while it is hidden
function canvas(id, height) {
  const svg = $(id), width = room(id);
  svg.replaceChildren();
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  return { svg, width, height };
}

class Plot {
  constructor(id, x, y, height, xlabel, ylabel) {  // x, y: the numbers that are marked along the axes
    Object.assign(this, canvas(id, height));
    const left = 44, right = this.width - 14, top = 26, bottom = height - 40;
    const scale = (ends, from, to) => (value) => from + (to - from) * (value - ends[0]) / (ends.at(-1) - ends[0]);
    this.x = scale(x, left, right);
    this.y = scale(y, bottom, top);
    this.back = scale([left, right], x[0], x.at(-1));
    this.ends = { y1: top, y2: bottom };
    for (const tick of y) {
      el(this.svg, "line", { x1: left, x2: right, y1: this.y(tick), y2: this.y(tick), class: "grid" });
      el(this.svg, "text", { x: left - 8, y: this.y(tick) + 4, class: "tick end" }, String(tick).replace("-", "−"));
    }
    for (const tick of x) el(this.svg, "text", { x: this.x(tick), y: bottom + 18, class: "tick middle" }, tick);
    el(this.svg, "text", { x: right, y: height - 5, class: "label end" }, xlabel);
    el(this.svg, "text", { x: 4, y: 13, class: "label" }, ylabel);
  }
  line(xs, ys, kind) {  // with gaps where there is no number
    const word = (x, i) => (i && ys[i - 1] !== null ? "L" : "M") + `${this.x(x)},${this.y(ys[i])}`;
    el(this.svg, "path", { d: xs.map((x, i) => (ys[i] === null ? "" : word(x, i))).join(""), class: `curve ${kind}` });
  }
  dot(x, y, r, kind) { el(this.svg, "circle", { cx: this.x(x), cy: this.y(y), r, class: `dot ${kind}` }); }
  rule(x, kind) { el(this.svg, "line", { x1: this.x(x), x2: this.x(x), ...this.ends, class: `rule ${kind}` }); }
}

function heat(id, rows, { wide = [], tall = [], most = 1, under = null, tallest = 26 }) {  // wide, tall: tokens
  const left = tall.length ? 22 : 0, top = wide.length ? 22 : 0;
  const across = (room(id) - left) / rows[0].length, down = Math.min(across, tallest);
  const { svg, width, height } = canvas(id, top + down * rows.length);
  el(svg, "rect", { x: left, y: top, width: width - left, height: height - top, class: "ground" });
  rows.forEach((row, i) => row.forEach((weight, j) => {
    const box = { x: left + j * across, y: top + i * down, width: across, height: down };
    if (under) el(svg, "rect", { ...box, class: "ink", "fill-opacity": under[i][j] });
    el(svg, "rect", { ...box, class: "cell", "fill-opacity": Math.min(1, weight / most) });
  }));
  wide.forEach((word, j) => el(svg, "text", { x: left + (j + 0.5) * across, y: 14, class: "token middle" }, word));
  tall.forEach((word, i) => el(svg, "text", { x: 8, y: top + (i + 0.5) * down + 4, class: "token middle" }, word));
}

function bars(id, rows, most) {  // rows: [name, value, low, high, text, look]
  const high = 26, { svg, width } = canvas(id, rows.length * high), left = Math.min(150, width * 0.34);
  const along = (value) => left + (width - left - 150) * Math.max(0, value) / most;
  rows.forEach(([name, value, low, top, text, kind], i) => {
    const y = (i + 0.5) * high, size = { x: left, y: y - 7, width: Math.max(1, along(value) - left), height: 14 };
    el(svg, "text", { x: left - 10, y: y + 4, class: "label end" }, name);
    el(svg, "rect", { ...size, class: `bar ${kind}` });
    if (top > low) el(svg, "line", { x1: along(low), x2: along(top), y1: y, y2: y, class: "whisker" });
    el(svg, "text", { x: width - 2, y: y + 4, class: "value end" }, text);
  });
}

function mark(station, place) {  // move the markers of the charts that stand still
  for (const one of all(".marker", $(station))) for (const end of ["x1", "x2"]) {
    one.setAttribute(end, one.dataset.places.split(" ")[place]);
  }
}

// ---- The stations
let hero;  // the plot whose query is dragged
const DRAW = {
  query(held) {
    const { x, y, width } = DATA.query, { places } = DATA.width, query = +held.query;
    const { weights, output } = regress(query, "gaussian", width);
    hero = new Plot("query-figure", [0, 1, 2, 3, 4], [-2, 0, 2, 4, 6], Math.min(430, innerHeight * 0.52), "x", "y");
    hero.line(places, places.map((place) => regress(place, "gaussian", width).output), "faint");
    x.forEach((key, i) => hero.dot(key, y[i], Math.sqrt(6 + 1500 * weights[i]), "c0"));
    hero.rule(query, "c1 grip");
    hero.dot(query, output, 8, "c1 output");
    const heavy = weights.map((weight, i) => [weight, y[i]]).sort((one, other) => other[0] - one[0]).flat();
    all("[data-term]").forEach((one, i) => { one.textContent = i % 2 ? signed(heavy[i]) : heavy[i].toFixed(2); });
    say("query-x", query.toFixed(2));
    say("query-output", signed(output));
  },
  width(held) {
    const { places, truth, own } = DATA.width, { x, y } = DATA.query, width = 10 ** +held.width;
    const found = places.map((place) => regress(place, held.kernel, width));
    const curve = found.map(({ weights, output }) => (sum(weights) ? output : null));
    const plot = new Plot("width-figure", [0, 1, 2, 3, 4], [-2, 0, 2, 4, 6], 320, "x", "y");
    x.forEach((key, i) => plot.dot(key, y[i], 2.5, "point"));
    plot.line(places, truth, "truth");
    plot.line(places, curve, "c0 thick");
    say("width-now", width.toPrecision(2));
    say("width-error", (sum(found.map(({ output }, i) => (output - truth[i]) ** 2)) / places.length).toFixed(3));
    say("width-empty", curve.filter((output) => output === null).length);
    $("width-own").dataset.set = `width=${Math.log10(own[held.kernel]).toFixed(3)}`;
  },
  norms(held) {
    const three = threeScores(+held.spread, held.constants === "printed");
    three.forEach((rows, i) => heat(`norms-${i}`, rows, { most: 0.5 }));
    for (const i of [1, 2]) say(`norms-moved-${i}`, `${(100 * moved(three[0], three[i])).toFixed(1)}%`);
  },
  saturation(held) {
    const place = +held.dimension, dim = DATA.saturation.dimensions[place], scores = DATA.saturation.scores[place];
    [softmax(scores), softmax(scores.map((score) => score / Math.sqrt(dim)))].forEach((weights, i) => {
      const plot = new Plot(`saturation-${i}`, [0, 8, 16, 24], [0, 0.5, 1], 190, "keys, the heaviest first", "weight");
      weights.forEach((weight, j) => el(plot.svg, "rect", { x: plot.x(j) + 1, width: plot.x(1) - plot.x(0) - 2,
        y: plot.y(weight), height: plot.y(0) - plot.y(weight), class: `bar ${i ? "c0" : "c1"}` }));
      say(`saturation-entropy-${i}`, entropy(weights).toFixed(2));
    });
    say("saturation-now", dim);
    mark("saturation", place);
  },
  scores(held) {
    const rows = DATA.scores.scores.map((one) => [one.name, ...one[held.measure], "c0"]);
    bars("scores-figure", rows, Math.max(...rows.map((row) => row[3])));
  },
  bottleneck(held) {
    const { lists, exact } = DATA.bottleneck, place = held.length;
    for (const slot of all("[data-list]")) {
      const [list, part] = slot.dataset.list.split(" ");
      slot.replaceChildren(...(lists[place][list]?.[part] ?? []).map(([word, right]) => {
        const made = document.createElement(right ? "span" : "mark");
        made.textContent = word || "nothing";
        return made;
      }));
    }
    for (const way in exact) say(`bottleneck-${way}`, percent(exact[way][place]));
    say("bottleneck-now", place);
    mark("bottleneck", place - 1);
  },
  learning(held) {
    const { weights, sources, target, updates, mass, exact } = DATA.learning, { language, look } = held;
    const [share, half] = mass[language][look];
    heat("learning-figure", weights[language][look], { wide: sources[language], tall: target });
    say("learning-update", updates[look].toLocaleString("en"));
    say("learning-mass", `${(100 * share).toFixed(1)}% ± ${(100 * half).toFixed(1)}`);
    say("learning-exact", percent(exact[language][look]));
    mark("learning", look);
  },
  heads(held) {
    const { accuracy, images, weights, said } = DATA.heads;
    const off = [0, 1, 2, 3].filter((head) => held[`off${head}`] === "1"), name = off.join("");
    const square = (row) => [0, 8, 16, 24, 32, 40, 48, 56].map((start) => row.slice(start, start + 8));
    weights[held.digit].forEach((row, head) => {
      heat(`heads-${head}`, square(row), { under: square(images[held.digit]), most: 0.6, tallest: 60 });
      $(`heads-${head}`).classList.toggle("off", off.includes(head));
    });
    bars("heads-figure", [["all four heads", "", "c0"], ["as switched", name, "c1"]].map(([label, key, kind]) =>
      [label, ...accuracy[key].slice(0, 3), percent(accuracy[key]).replace(/, n.*/, ")"), kind]), 1);
    say("heads-lost", (100 * (accuracy[""][0] - accuracy[name][0])).toFixed(1));
    say("heads-said", said[name][held.digit]);
    $("heads-said").classList.toggle("wrong", said[name][held.digit] !== +held.digit);
  },
};

// ---- What the reader does
function download(name, rows) {
  const cell = (value) => (/[",\n]/.test(value ?? "") ? `"${value.replaceAll('"', '""')}"` : value ?? "");
  const text = rows.map((row) => row.map(cell).join(",") + "\n").join(""), link = document.createElement("a");
  Object.assign(link, { href: URL.createObjectURL(new Blob([text], { type: "text/csv" })), download: `${name}.csv` });
  link.click();
}

const stationOf = (target) => target.closest("section")?.id;
document.addEventListener("input", ({ target }) => { at = stationOf(target) ?? at; refresh(stationOf(target)); });
document.addEventListener("click", (event) => {
  const { set: words, csv } = event.target.dataset, link = event.target.closest("a[href^='#']");
  if (words) go(words);
  if (csv) download(csv, DATA[stationOf(event.target)].tables[csv]);
  if (link) { event.preventDefault(); go(link.hash.slice(1)); }
});
document.addEventListener("keydown", (event) => {
  const presenter = state().lecture === "1" && { PageDown: 1, PageUp: -1 };
  const by = { ArrowRight: 1, ArrowLeft: -1, ...presenter }[event.key];
  if (event.key === "Escape") go(`lecture=0&at=${at}`);
  if (by && !/INPUT|SELECT/.test(event.target.tagName) && !event.altKey) step(by);
});
for (const kind of ["pointerdown", "pointermove"]) $("query-figure").addEventListener(kind, (event) => {
  if (!event.buttons) return;
  event.currentTarget.setPointerCapture(event.pointerId);
  set(`query=${hero.back(event.clientX - event.currentTarget.getBoundingClientRect().left).toFixed(2)}`);
  refresh(at = "query");
});
addEventListener("hashchange", () => { set(beginning); go(location.hash.slice(1)); });
addEventListener("resize", () => refresh());
go(location.hash.slice(1));
