// How a model learns: its progress while it is trained, and its alignment at every moment of the training.

import { ask } from "./ask.js";
import { axis, blank, element, linear, onResize, room, shape, shown, through } from "./draw.js";
import { alignment, asRows } from "./maps.js";
import { offer as offerFiles } from "./save.js";

const get = (id) => document.getElementById(`tr-${id}`);
const LANGUAGES = new Intl.DisplayNames(["en"], { type: "language" });

export class Learning {
  constructor() {
    this.model = null;
    this.sentences = [];
    this.frames = [];
    this.sentence = 0;
    this.atEnd = true;
    get("moment").addEventListener("input", () => {
      this.atEnd = Number(get("moment").value) === this.frames.length - 1;
      this.draw();
    });
    onResize(get("learning"), () => this.draw());
    offerFiles(document.querySelector('[data-export="frame"]'), "learning", get("frame"), () => this.rows());
  }

  // Shows a model; asks for the frames that have come since the last time.
  async follow(model) {
    if (this.model?.name !== model.name) {
      Object.assign(this, { sentences: [], frames: [], sentence: 0, atEnd: true });
    }
    this.model = model;
    if (model.frames < this.frames.length) this.frames = [];  // it was begun anew
    if (model.frames > this.frames.length || (model.frames && !this.sentences.length)) {
      const told = await ask("/api/models/looks", { model: model.name, first: this.frames.length });
      if (this.model.name !== model.name) return;
      if (told.first === this.frames.length) this.frames.push(...told.frames);
      if (String(told.sentences.map((one) => one.text)) !== String(this.sentences.map((one) => one.text))) {
        this.sentences = told.sentences;
        this.choose();
      }
    }
    this.progress();
    this.draw();
  }

  texts() {
    return this.sentences.map(({ text, language }) => ({ text, language, toString: () => text }));
  }

  choose() {
    get("sentences").replaceChildren(...this.sentences.map((one, i) => {
      const input = element("input", { type: "radio", name: "sentence", value: String(i) });
      input.checked = i === this.sentence;
      input.addEventListener("change", () => { this.sentence = i; this.draw(); });
      return element("label", { class: "radio" }, input, LANGUAGES.of(one.language));
    }));
  }

  progress() {
    const { state, update, updates, loss, seconds_left: left, refusal } = this.model;
    const learns = state === "training" || state === "waiting";
    get("learning").hidden = !learns && this.frames.length === 0;
    get("learning-title").textContent = learns ? "It is learning" : "How it learnt";
    get("progress").parentElement.hidden = !learns && state !== "refused";
    get("progress").max = updates ?? 1;
    get("progress").value = update ?? 0;
    const parts = [];
    if (state === "waiting") parts.push("waits for its turn");
    if (state === "training" && !updates) parts.push("makes its corpus of dates");
    if (updates && learns) parts.push(`update ${update ?? 0} of ${updates} (${Math.floor(100 * (update ?? 0) / updates)}%)`);
    if (loss !== null && loss !== undefined && learns) parts.push(`loss ${loss.toFixed(3)}`);
    if (left !== null && learns) parts.push(`${Math.ceil(left)} s left`);
    get("progress-words").textContent = parts.join(" · ") + (state === "refused" ? refusal : "");
  }

  get frame() {
    return this.frames[Number(get("moment").value)];
  }

  draw() {
    const last = Math.max(0, this.frames.length - 1);
    get("moment").max = String(last);
    if (this.atEnd) get("moment").value = String(last);
    const frame = this.frame;
    const weights = frame?.weights[this.sentence];
    get("moments").hidden = !weights;
    get("moment-shown").textContent = frame ? `update ${frame.update}` : "";
    get("moment").setAttribute("aria-valuetext", frame ? this.words(frame) : "");
    if (!weights) return;
    const { source, target } = this.sentences[this.sentence];
    alignment(get("frame"), source, target, weights);
    this.curve(frame);
  }

  words(frame) {
    return `update ${frame.update}, ${shown(100 * frame.share)}% of the attention on the right characters`;
  }

  // The share on the right characters over the updates, and where the moment stands on it.
  curve(frame) {
    const width = Math.min(room(get("curve")), 440), height = 190;
    const svg = blank(get("curve"), width, height);
    const most = this.model.updates || this.frames.at(-1).update || 1;
    const x = linear(0, most, 46, width - 12), y = linear(0, 1, height - 40, 22);
    svg.append(axis("left", y, [0, 1], 46, "share on the right characters", { count: 4, across: [46, width - 12] }));
    svg.append(axis("below", x, [0, most], height - 40, "update", { count: 4 }));
    svg.append(shape("path", { class: "fitted", d: through(this.frames.map((f) => x(f.update)), this.frames.map((f) => y(f.share))) }));
    svg.append(shape("circle", { class: "now", cx: x(frame.update), cy: y(frame.share), r: 5 }));
    const end = frame.update > most * 0.6;
    svg.append(shape("text", { x: x(frame.update) + (end ? -9 : 9), y: y(frame.share) + 18, "text-anchor": end ? "end" : "start" }, shown(frame.share, 2)));
  }

  rows() {
    const frame = this.frame;
    if (!frame?.weights.length) return [["written"]];
    const { source, target } = this.sentences[this.sentence];
    return asRows(`update ${frame.update}`, target, source, frame.weights[this.sentence]);
  }
}
