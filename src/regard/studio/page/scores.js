// The score laboratory: the same queries and keys under any score, a mask edited by hand, and heads switched off.

import { Latest, ask } from "./ask.js";
import { among, number, write } from "./address.js";
import { axis, blank, element, linear, onResize, room, shape, shown, textWidth } from "./draw.js";
import { MaskEditor } from "./mask_editor.js";
import { asRows, heatmap, thumbnail } from "./maps.js";
import { offer as offerFiles } from "./save.js";
import { python } from "./score_code.js";

const get = (id) => document.getElementById(`sc-${id}`);
const SENTENCE = "the cat sat on the mat and the dog sat too";
const NAMES = { scaled_dot: "scaled dot", squared_distance: "squared distance", cosine_kernel: "cosine kernel" };
const DEFAULTS = { queries: SENTENCE, keys: "", score: "gaussian", width: "2", dim: "16", spread: "0", head: "0", off: "",
  causal: "false", window: "false", left: "2", right: "2", lengths: "false", length: "6", edits: "" };
const FLAGS = ["causal", "window", "lengths"], COUNTS = ["left", "right", "length"];

export async function open(values) {
  const offered = await ask("/api/scores");
  return new Room(offered, values);
}

class Room {
  constructor(offered, values) {
    this.offered = offered;
    this.attend = new Latest("/api/scores/attend", get("editor"), (answer) => { this.answer = answer; this.draw(); });
    this.editor = new MaskEditor(get("editor"), get("map"), get("cell"), (query, key) => this.toggle(query, key));
    get("score").replaceChildren(...offered.scores.map((name) => element("option", { value: name }, NAMES[name] ?? name)));
    this.makeHeads();
    this.take(values);
    const slide = (id, act) => get(id).addEventListener("input", () => { act(Number(get(id).value)); this.moved(); });
    slide("width", (share) => { this.width = offered.widths[0] * (offered.widths[1] / offered.widths[0]) ** (share / 1000); });
    slide("dim", (value) => { this.dim = value; });
    slide("spread", (value) => { this.spread = value; });
    get("score").addEventListener("change", () => this.moved());
    for (const id of ["queries", "keys"]) get(id).addEventListener("input", () => this.moved());
    for (const id of [...FLAGS, ...COUNTS]) get(id).addEventListener("input", () => this.moved());
    get("clear").addEventListener("click", () => { this.edits.clear(); this.moved(); });
    get("form").addEventListener("submit", (event) => event.preventDefault());
    onResize(get("heads"), () => { if (this.answer) this.draw(); });
    offerFiles(document.querySelector('[data-export="head"]'), "weights", get("map"), () => this.rows());
    offerFiles(document.querySelector('[data-export="bars"]'), "heads-off", get("bars"), () =>
      [["query", "change of the output"], ...this.answer.queries.map((word, i) => [word, this.answer.effect.change[i]])]);
    offerFiles(document.querySelector('[data-export="table"]'), "scores", null, () =>
      [["score", "entropy, nats", ...offered.heads.map((title) => `on the right key: ${title}`)],
        ...this.answer.every_score.map((line) => [line.score, line.entropy, ...line.on_right])]);
  }

  take(values) {
    const [low, high] = this.offered.widths;
    get("queries").value = values.queries ?? DEFAULTS.queries;
    get("keys").value = values.keys ?? "";
    get("score").value = among(values.score, this.offered.scores, DEFAULTS.score);
    this.width = number(values.width, 2, low, high);
    this.dim = number(values.dim, 16, ...this.offered.dims);
    this.spread = number(values.spread, 0, 0, 1);
    this.head = number(values.head, 0, 0, this.offered.heads.length - 1);
    this.off = new Set((values.off ?? "").split(",").filter(Boolean).map(Number)
      .filter((head) => Number.isInteger(head) && head >= 0 && head < this.offered.heads.length));
    for (const id of FLAGS) get(id).checked = values[id] === "true";
    for (const id of COUNTS) get(id).value = String(number(values[id], Number(DEFAULTS[id]), 0, this.offered.most_words));
    this.edits = new Map((values.edits ?? "").split(",").map((edit) => /^(\d+)\.(\d+)\.([01])$/.exec(edit)).filter(Boolean)
      .map(([, query, key, may]) => [`${query}.${key}`, may === "1"]));
    this.moved();
  }

  // A card for each head: a radio button to see it in large, a switch, and its weights in small.
  makeHeads() {
    this.cards = this.offered.heads.map((title, i) => {
      const pick = element("input", { type: "radio", name: "head", value: String(i) });
      const on = element("input", { type: "checkbox", role: "switch", "aria-label": `Head “${title}” is on` });
      const svg = shape("svg", { role: "img", "aria-label": `Weights of the head “${title}”` });
      const facts = element("span", { class: "quiet" });
      const card = element("div", { class: "head" },
        element("div", { class: "row" }, element("label", { class: "radio" }, pick, title), element("label", { class: "radio" }, on, "on")),
        element("div", { class: "picture" }, svg), facts);
      pick.addEventListener("change", () => { this.head = i; this.moved(); });
      on.addEventListener("change", () => { if (on.checked) this.off.delete(i); else this.off.add(i); this.moved(); });
      return { card, pick, on, svg, facts };
    });
    get("heads").replaceChildren(...this.cards.map(({ card }) => card));
  }

  toggle(query, key) {
    if (!this.answer) return;
    this.edits.set(`${query}.${key}`, !this.answer.allowed[query][key]);
    this.answer.allowed[query][key] = !this.answer.allowed[query][key];
    this.moved();
  }

  // Everything that is asked for, but for what the address writes in its own way.
  get settings() {
    const flags = FLAGS.map((id) => [id, get(id).checked]);
    const counts = COUNTS.map((id) => [id, Math.round(number(get(id).value, Number(DEFAULTS[id]), 0, this.offered.most_words))]);
    return { queries: get("queries").value, keys: get("keys").value, score: get("score").value, dim: this.dim,
      spread: this.spread, ...Object.fromEntries([...flags, ...counts]) };
  }

  moved() {
    this.show();
    const edits = [...this.edits].map(([cell, may]) => [...cell.split(".").map(Number), may]);
    this.attend.want({ ...this.settings, width: this.width, off: [...this.off], edits });
    this.remember();
  }

  remember() {
    write("scores", { ...this.settings, width: Number(this.width.toPrecision(4)), head: this.head, off: [...this.off].sort().join(","),
      edits: [...this.edits].map(([cell, may]) => `${cell}.${may ? 1 : 0}`).join(",") }, DEFAULTS);
  }

  show() {
    const [low, high] = this.offered.widths;
    get("width").value = String(Math.round(1000 * Math.log(this.width / low) / Math.log(high / low)));
    get("width-shown").textContent = shown(this.width);
    get("width").setAttribute("aria-valuetext", shown(this.width));
    get("dim").value = String(this.dim);
    get("dim-shown").textContent = String(this.dim);
    get("spread").value = String(this.spread);
    get("spread-shown").textContent = this.spread === 0 ? "0, all equal" : shown(this.spread);
    get("edits").textContent = `${this.edits.size} ${this.edits.size === 1 ? "cell" : "cells"} changed by hand`;
    this.cards.forEach(({ card, pick, on }, i) => {
      pick.checked = i === this.head;
      on.checked = !this.off.has(i);
      card.classList.toggle("off", this.off.has(i));
    });
  }

  draw() {
    const { queries, keys, heads, allowed, effect } = this.answer;
    heads.forEach((head, i) => {
      const { svg, facts } = this.cards[i];
      const right = head.correct.filter((one) => one !== null);
      thumbnail(svg, { weights: head.weights, allowed });
      facts.textContent = `${right.filter(Boolean).length} of ${right.length} found; ${shown(100 * (head.on_right ?? NaN))}% of the weight on the right key`;
    });
    const head = heads[this.head];
    get("head-title").textContent = `Head “${head.title}”`;
    const at = heatmap(get("map"), { rows: queries, columns: keys, weights: head.weights, allowed, labels: { rows: "query", columns: "key" } });
    this.editor.drawn(at, { queries, keys, weights: head.weights, allowed });
    this.effectWords(effect);
    this.bars(queries, effect.change);
    this.table();
    get("python").textContent = python(this.answer, this.settings, this.width, this.edits);
  }

  effectWords(effect) {
    const blind = this.answer.blind_rows ? ` ${this.answer.blind_rows === 1 ? "One query sees" : `${this.answer.blind_rows} queries see`} no key in some head, and gets 0 from it.` : "";
    if (!effect.off.length) {
      get("effect").textContent = `All heads are on: ${effect.right_with_all} of ${effect.asked} answers are right.${blind}`;
      return;
    }
    const names = effect.off.map((head) => `“${this.offered.heads[head]}”`).join(", ");
    get("effect").textContent = `Without ${names} the output moves by ${shown(100 * effect.mean_change)}% of its length (mean over ${this.answer.queries.length} queries), and `
      + `${effect.right_now} of ${effect.asked} answers are right instead of ${effect.right_with_all}.${blind}`;
  }

  // How far the output of each query moves, as a share of its length.
  bars(queries, change) {
    const width = Math.min(room(get("bars")), 460);
    const left = Math.ceil(Math.max(...queries.map((word) => textWidth(word)))) + 10;
    const height = 24 + queries.length * 19 + 40;
    const svg = blank(get("bars"), width, height);
    const x = linear(0, 1, left, width - 16);
    svg.append(axis("below", x, [0, 1], height - 40, "change of the output, share of its length", { count: 4, across: [8, height - 40] }));
    queries.forEach((word, i) => {
      const y = 10 + i * 19;
      svg.append(shape("text", { x: left - 6, y: y + 11, "text-anchor": "end" }, word));
      svg.append(shape("rect", { class: "ribbon", x: left, y, width: Math.max(0, x(change[i]) - left), height: 13 }));
    });
    if (!this.off.size) svg.append(shape("text", { x: left + 12, y: 21, class: "quiet" }, "Switch a head off to see what its silence changes."));
  }

  table() {
    const titles = ["score", "entropy", ...this.offered.heads];
    get("table").replaceChildren(
      element("thead", {}, element("tr", {}, ...titles.map((title) => element("th", { scope: "col" }, title)))),
      element("tbody", {}, ...this.answer.every_score.map((line) => element("tr", line.score === get("score").value ? { class: "chosen", "aria-current": "true" } : {},
        element("th", { scope: "row" }, NAMES[line.score] ?? line.score), element("td", {}, line.entropy.toFixed(2)),
        ...line.on_right.map((share) => element("td", {}, share === null ? "–" : share.toFixed(2)))))));
  }

  rows() {
    const head = this.answer.heads[this.head];
    return asRows(head.title, this.answer.queries, this.answer.keys, head.weights);
  }
}
