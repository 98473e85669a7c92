// The regression room: points by hand or from a file, a kernel and its width, and the curve that follows them.

import { Latest, ask, settle, tell, tellOf } from "./ask.js";
import { among, number, write } from "./address.js";
import { element, onResize, shown } from "./draw.js";
import { FitPlot, viewOf } from "./fit_plot.js";
import { formula, plain, python, words } from "./fit_words.js";
import { offer as offerFiles } from "./save.js";

const get = (id) => document.getElementById(`fit-${id}`);
const NAMES = { cosine_kernel: "cosine", loo: "leave-one-out", aicc: "AICc", gcv: "GCV" };
const DEFAULTS = { kernel: "gaussian", width: "", query: "", degree: "0", level: "0.95", data: "chapter", points: "" };
const RESTED = 150;  // milliseconds after which a hand rests
const NEAR = 10, APART = 9;  // pixels: to erase a point, and between two that are drawn in one stroke
const MOST_IN_ADDRESS = 250;

const TOO_LARGE = "The file makes a request of more than 1 MiB. Take a sample; `regard regress` reads larger files.";

export async function open(values) {
  const offered = await ask("/api/regression");
  return new Room(offered, values);
}

class Room {
  constructor(offered, values) {
    this.offered = offered;
    this.plot = new FitPlot(document.getElementById("fit"));
    this.fit = new Latest("/api/regression/fit", get("picture"), (answer, about) => this.answered(answer, about));
    this.answer = null;
    get("kernel").replaceChildren(...offered.kernels.map((name) => element("option", { value: name }, NAMES[name] ?? name)));
    get("search").replaceChildren(...offered.criteria.map((name) => {
      const button = element("button", { type: "button" }, NAMES[name]);
      button.addEventListener("click", () => this.search(name));
      return button;
    }));
    this.take(values);
    this.listen();
    offerFiles(document.querySelector('[data-export="fit"]'), "regression", this.plot.svg, () => this.rows());
    onResize(get("picture"), () => { this.plot.frame(this.view, this.names); this.draw(); });
  }

  // The state of the address; what it does not say is at its default.
  take(values) {
    this.kernel = among(values.kernel, this.offered.kernels, DEFAULTS.kernel);
    this.degree = number(values.degree, 0, 0, 1);
    this.level = number(values.level, 0.95, 0.5, 0.999);
    const own = values.data === "own" ? parsePoints(values.points ?? "", this.offered.most) : null;
    this.setPoints(own ?? { x: [...this.offered.x], y: [...this.offered.y] }, own ? "own" : "chapter");
    this.width = number(values.width, this.span / 12, this.narrowest, this.widest);
    this.query = number(values.query, this.view.x[0] + 0.375 * this.span, ...this.view.x);
    this.show();
    this.ask();
  }

  get span() { return this.view.x[1] - this.view.x[0]; }
  get narrowest() { return this.span / 500; }
  get widest() { return this.span * 5; }

  setPoints(points, source, names = { x: "x", y: "y" }) {
    this.points = points;
    this.names = names;
    this.source = source;
    this.view = viewOf(points);
    if (!(this.width >= this.narrowest && this.width <= this.widest)) this.width = this.span / 12;
    if (!(this.query >= this.view.x[0] && this.query <= this.view.x[1])) this.query = this.view.x[0] + 0.375 * this.span;
    this.answer = null;
    this.plot.frame(this.view, this.names);
  }

  listen() {
    const slide = (id, act) => get(id).addEventListener("input", () => { act(Number(get(id).value) / 1000); this.moved(); });
    slide("width", (share) => { this.width = this.narrowest * (this.widest / this.narrowest) ** share; });
    slide("query", (share) => { this.query = this.view.x[0] + share * this.span; });
    get("kernel").addEventListener("change", () => { this.kernel = get("kernel").value; this.moved(); });
    get("degree").addEventListener("change", () => { this.degree = Number(get("degree").value); this.moved(); });
    get("band").addEventListener("change", () => { this.level = Number(get("band").value); this.moved(); });
    get("form").addEventListener("submit", (event) => event.preventDefault());
    get("add").addEventListener("click", () => this.addTyped());
    get("clear").addEventListener("click", () => { this.points = { x: [], y: [] }; this.changed(); });
    get("chapter").addEventListener("click", () => {
      this.setPoints({ x: [...this.offered.x], y: [...this.offered.y] }, "chapter");
      this.moved();
    });
    get("mouse").addEventListener("change", () => { this.plot.svg.dataset.mouse = this.mouse; });
    get("file").addEventListener("change", () => this.load());
    for (const side of ["x", "y"]) get(`${side}-column`).addEventListener("change", () => this.readColumns());
    const svg = this.plot.svg;
    svg.addEventListener("pointerdown", (event) => {
      svg.setPointerCapture(event.pointerId);
      this.last = null;
      this.pointed(event);
    });
    svg.addEventListener("pointermove", (event) => { if (event.buttons) this.pointed(event); });
  }

  get mouse() { return get("form").elements.mouse.value; }

  pointed(event) {
    const at = this.plot.at(event);
    if (this.mouse === "query" || at.y === null) {
      this.query = Math.min(this.view.x[1], Math.max(this.view.x[0], at.x));
      this.moved();
    } else if (this.mouse === "draw") {
      const away = this.last ? Math.hypot(at.across - this.last.across, at.down - this.last.down) : Infinity;
      if (away < APART) return;
      this.last = at;
      this.add(at.x, at.y);
    } else {
      const keep = this.points.x.map((x, i) =>
        Math.hypot(this.plot.x(x) - at.across, this.plot.y(this.points.y[i]) - at.down) > NEAR);
      if (keep.every(Boolean)) return;
      this.points = { x: this.points.x.filter((_, i) => keep[i]), y: this.points.y.filter((_, i) => keep[i]) };
      this.changed();
    }
  }

  add(x, y) {
    if (this.points.x.length >= this.offered.most) {
      tell(`There are ${this.offered.most.toLocaleString("en")} points, the most that the studio takes. Erase some first.`);
      return;
    }
    this.points = { x: [...this.points.x, x], y: [...this.points.y, y] };
    this.changed();
  }

  addTyped() {
    const [x, y] = [get("x"), get("y")].map((field) => (field.value.trim() === "" ? NaN : Number(field.value)));
    if (!Number.isFinite(x) || !Number.isFinite(y)) {
      tell("A point needs two numbers. Type x and y, with a decimal point, then press Add.", "point");
      return;
    }
    settle("point");
    const [[x0, x1], [y0, y1]] = [this.view.x, this.view.y];
    this.add(x, y);
    if (x < x0 || x > x1 || y < y0 || y > y1) { this.view = viewOf(this.points); this.plot.frame(this.view, this.names); this.moved(); }
  }

  // The points are another set now, within the same view.
  changed() {
    this.source = "own";
    if (this.answer) this.answer = { ...this.answer, weights: [] };
    this.moved();
  }

  moved() {
    this.show();
    if (this.points.x.length) this.ask();
    else { clearTimeout(this.rest); this.answer = null; this.draw(); this.say(); }
    this.remember();
  }

  remember() {
    const few = this.source === "own" && this.points.x.length <= MOST_IN_ADDRESS;
    write("regression", {
      kernel: this.kernel, width: plain(this.width), query: plain(this.query), degree: this.degree,
      level: this.level, data: this.source, points: few ? formatPoints(this.points) : "",
    }, DEFAULTS);
  }

  // A hand that drags gets curve, weights and band (that of local lines takes longer); when it rests, everything.
  ask(criterion = "", whole = criterion !== "") {
    clearTimeout(this.rest);
    const { points, kernel, degree, level, query, view } = this;
    const band = whole || degree === 0;
    this.fit.want({
      x: points.x, y: points.y, kernel, degree, level, query, band, whole, criterion,
      bandwidth: this.width, low: view.x[0], high: view.x[1],
    }, { band, whole, criterion, points });
  }

  search(criterion) {
    if (this.points.x.length) this.ask(criterion);
    else tell("There are no points to choose a width by. Draw some, or load a CSV file.");
  }

  answered(answer, about) {
    if (about.points !== this.points) return;  // another question is on its way
    if (about.criterion) this.width = Math.min(this.widest, Math.max(this.narrowest, answer.bandwidth));
    if (!about.band && this.answer?.upper && this.answer.places.length === answer.places.length) {
      answer = { ...answer, lower: this.answer.lower, upper: this.answer.upper, staleBand: true };
    }
    this.answer = answer;
    this.show();
    this.draw();
    this.say();
    if (!about.whole && this.fit.idle) this.rest = setTimeout(() => this.ask("", true), RESTED);
    if (about.criterion) { this.show(); this.remember(); }
  }

  draw() {
    this.plot.draw(this.points, this.answer, this.query);
    this.plot.svg.dispatchEvent(new CustomEvent("drawn"));
  }

  show() {
    get("kernel").value = this.kernel;
    get("degree").value = String(this.degree);
    get("band").value = String(this.level);
    get("level").textContent = shown(100 * this.level);
    get("width").value = Math.round(1000 * Math.log(this.width / this.narrowest) / Math.log(this.widest / this.narrowest));
    get("width").setAttribute("aria-valuetext", shown(this.width));
    get("width-shown").textContent = shown(this.width);
    get("query").value = Math.round(1000 * (this.query - this.view.x[0]) / this.span);
    get("query").setAttribute("aria-valuetext", shown(this.query));
    get("query-shown").textContent = shown(this.query);
    const count = this.points.x.length;
    get("count").textContent = `${count.toLocaleString("en")} of at most ${this.offered.most.toLocaleString("en")} points.`
      + (this.source === "own" && count > MOST_IN_ADDRESS ? " So many are not kept in the address." : "");
  }

  // The answer in a formula and in words; the words are what a screen reader is told, once things rest.
  say() {
    clearTimeout(this.timer);
    const { answer, points } = this;
    const known = answer && answer.weights.length === points.x.length;
    get("formula").textContent = known ? formula(answer, points) : "";
    if (known) this.timer = setTimeout(() => { get("words").textContent = words(answer, this.level); }, 2 * RESTED);
    else get("words").textContent = points.x.length ? "" : "No points. Draw some in the plot, type one, or load a CSV file.";
    get("python").textContent = python(this);
  }

  async load() {
    const file = get("file").files[0];
    if (!file) return;
    if (file.size > this.offered.most_bytes) { tell(TOO_LARGE); return; }
    this.text = await file.text();
    await this.readColumns(true);
  }

  async readColumns(first = false) {
    try {
      const [x, y] = first === true ? ["", ""] : [get("x-column").value, get("y-column").value];
      const question = { text: this.text, x, y };
      // As JSON a file is larger: line ends and quotes are escaped.
      if (new Blob([JSON.stringify(question)]).size > this.offered.most_bytes) { tell(TOO_LARGE, "file"); return; }
      const table = await ask("/api/regression/table", question);
      settle("file");
      for (const side of ["x", "y"]) {
        get(`${side}-column`).replaceChildren(...table.columns.map((name) => element("option", { value: name }, name)));
        get(`${side}-column`).value = table[`${side}_name`];
      }
      get("columns").hidden = false;
      this.setPoints({ x: table.x, y: table.y }, "own", { x: table.x_name, y: table.y_name });
      this.width = this.span / 12;
      this.moved();
      if (table.dropped) tell(`${table.dropped} rows with a blank or missing number were left out.`);
    } catch (error) {
      tellOf(error, "file");
    }
  }

  rows() {
    const { answer, points } = this;
    if (!answer) return [["kind", "x", "y"]];
    const band = (i) => (answer.upper && !answer.staleBand ? [answer.lower[i], answer.upper[i]] : ["", ""]);
    return [["kind", "x", "y", "lower", "upper", "weight at the query"],
      ...answer.places.map((x, i) => ["curve", x, answer.mean[i], ...band(i), ""]),
      ["query", answer.at.query, answer.at.mean, answer.at.lower, answer.at.upper, ""],
      ...points.x.map((x, i) => ["point", x, points.y[i], "", "", answer.weights[i]])];
  }
}

function formatPoints(points) {
  return points.x.map((x, i) => `${Number(x.toPrecision(4))},${Number(points.y[i].toPrecision(4))}`).join(";");
}

function parsePoints(text, most) {
  const pairs = text.split(";").filter(Boolean).map((pair) => pair.split(",").map(Number));
  if (!pairs.length || pairs.length > most || pairs.some((p) => p.length !== 2 || !p.every(Number.isFinite))) return null;
  return { x: pairs.map((p) => p[0]), y: pairs.map((p) => p[1]) };
}
