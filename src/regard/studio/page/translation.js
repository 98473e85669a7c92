// The translation room: a sentence, its best translations, and where the model looked for each of them.

import { Latest, ask, settle, tellOf } from "./ask.js";
import { among, number, write } from "./address.js";
import { element, onResize, shown } from "./draw.js";
import { Learning } from "./learning.js";
import { alignment, asRows, lines } from "./maps.js";
import { offer as offerFiles } from "./save.js";

const get = (id) => document.getElementById(`tr-${id}`);
const DEFAULTS = { model: "", text: "", candidates: "5", unit: "auto" };
const OFTEN = 500, SELDOM = 3000;  // milliseconds between two looks at the models
const COUNTS = [1, 3, 5, 10];

export async function open(values) {
  const room = new Room(values);
  await room.begin();
  return room;
}

class Room {
  constructor(values) {
    this.models = [];
    this.answer = null;
    this.chosen = 0;
    this.learning = new Learning();
    this.translate = new Latest("/api/translate", get("pictures"), (answer) => this.answered(answer));
    get("text").addEventListener("input", () => this.moved());
    get("model").addEventListener("change", () => { this.model = get("model").value; this.follow(); this.moved(); });
    get("candidates").addEventListener("change", () => this.moved());
    get("unit").addEventListener("change", () => this.moved());
    get("form").addEventListener("submit", (event) => event.preventDefault());
    get("numbers").addEventListener("toggle", () => this.table());
    onResize(get("pictures"), () => this.draw());
    offerFiles(document.querySelector('[data-export="map"]'), "alignment", get("map"), () => this.rows());
    offerFiles(document.querySelector('[data-export="lines"]'), "alignment-lines", get("lines"), () => this.rows());
    this.values = values;
  }

  // Entering the room begins what has to be learnt; from then on the models are looked at now and then.
  async begin() {
    const told = await ask("/api/models/begin", {});
    this.take(this.values, told.models);
    this.timer = setTimeout(() => this.look(), OFTEN);
  }

  take(values, models = this.models) {
    this.models = models;
    this.model = among(values.model, models.map((model) => model.name), models[0].name);
    get("candidates").value = String(among(number(values.candidates, 5, 1, 10), COUNTS, 5));
    get("unit").value = among(values.unit, ["auto", "tokens", "words"], "auto");
    get("text").value = values.text ?? "";
    this.menu();
    this.follow();
    this.moved();
  }

  async look() {
    let training = false;
    if (!document.getElementById("room-translation").hidden) {
      try {
        const before = this.current?.state;
        this.models = (await ask("/api/models")).models;
        settle("models");
        this.menu();
        await this.follow();
        if (before !== "ready" && this.current.state === "ready") this.moved();
        training = this.models.some((model) => model.state === "training" || model.state === "waiting");
      } catch (error) {
        tellOf(error, "models");
      }
    }
    this.timer = setTimeout(() => this.look(), training && this.current.state !== "ready" ? OFTEN : SELDOM);
  }

  get current() { return this.models.find((model) => model.name === this.model); }

  async follow() {
    await this.learning.follow(this.current);
    this.examples();
  }

  // The menu and the list of models; rebuilt only where a state has changed, so that nothing jumps under the hand.
  menu() {
    const said = JSON.stringify(this.models.map((model) => [model.name, model.state, percent(model), model.refusal]));
    if (said !== this.said) {
      this.said = said;
      get("model").replaceChildren(...this.models.map((model) => element("option", { value: model.name },
        model.state === "ready" ? model.title : `${model.title} (${model.state === "training" ? "learning" : model.state})`)));
      get("models").replaceChildren(...this.models.map((model) => {
        const item = element("li", {}, element("span", {}, model.title), element("span", {}, percent(model)));
        if (model.refusal && model.state === "refused") item.append(element("span", { class: "refusal" }, model.refusal));
        return item;
      }));
    }
    get("model").value = this.model;
    get("quality").textContent = quality(this.current);
  }

  examples() {
    const texts = this.learning.texts();
    if (String(texts) === this.offered) return;
    this.offered = String(texts);
    get("examples").replaceChildren(...texts.map(({ text, language }) => {
      const button = element("button", { type: "button", lang: language, dir: "auto" }, text);
      button.addEventListener("click", () => { get("text").value = text; this.moved(); });
      return button;
    }));
    if (!get("text").value && texts.length) { get("text").value = texts[0].text; this.moved(); }
  }

  remember() {
    const model = this.model === this.models[0]?.name ? "" : this.model;
    const [text, candidates, unit] = [get("text").value, get("candidates").value, get("unit").value];
    write("translation", { model, text, candidates, unit }, DEFAULTS);
  }

  moved() {
    this.remember();
    const [text, candidates, unit] = [get("text").value, Number(get("candidates").value), get("unit").value];
    if (this.current?.state !== "ready") { this.empty(waits(this.current)); return; }
    if (!text.trim()) { this.empty("Type a sentence."); return; }
    this.translate.want({ model: this.model, text, candidates, unit });
  }

  empty(words) {
    this.answer = null;
    get("answer").textContent = words;
    get("choices").replaceChildren();
    get("pictures").hidden = get("numbers").hidden = true;
    get("unknown").textContent = "";
  }

  answered(answer) {
    if (this.current.state !== "ready" || !get("text").value.trim()) return;
    this.answer = answer;
    this.chosen = 0;
    const best = Math.max(...answer.candidates.map((one) => one.log_probability));
    get("choices").replaceChildren(...answer.candidates.map((one, i) => choice(one, i, best)));
    for (const input of get("choices").querySelectorAll("input")) {
      input.addEventListener("change", () => { this.chosen = Number(input.value); this.show(); });
    }
    get("unknown").textContent = answer.unknown
      ? `The model does not know ${answer.unknown === 1 ? "one sign" : `${answer.unknown} signs`} of this sentence (shown as ⁇).` : "";
    this.show();
  }

  show() {
    const one = this.answer.candidates[this.chosen];
    get("answer").textContent = one.text || "(nothing)";
    get("pictures").hidden = get("numbers").hidden = !one.weights?.length;
    if (!one.weights) {
      get("unknown").textContent = "This model has no attention: one vector of a fixed size carries the sentence, so there is nothing to align.";
    }
    this.draw();
    this.table();
    const folder = this.model === "given" ? this.current.title : "folder";
    const count = Number(get("candidates").value);
    get("python").textContent = ["from regard.translation import Translator", "",
      `translator = Translator.load(${JSON.stringify(folder)})`,
      `best = translator.translate([${JSON.stringify(this.answer.text)}], beams=${Math.max(count, 5)}, nbest=${count})[0]`,
      `best.text, best.${this.answer.unit === "tokens" ? "alignment_of_tokens" : "alignment"}, best.others`].join("\n");
  }

  draw() {
    const one = this.answer?.candidates[this.chosen];
    if (!one?.weights?.length || !this.answer.source.length) return;
    const [rows, columns] = [one.target, this.answer.source];
    alignment(get("map"), columns, rows, one.weights);
    lines(get("lines"), { source: columns, target: rows, weights: one.weights, labels: { rows: "written", columns: "source" } });
  }

  table() {
    const one = this.answer?.candidates[this.chosen];
    if (!get("numbers").open || !one?.weights) return;
    const [head, ...body] = this.rows();
    get("table").replaceChildren(
      element("thead", {}, element("tr", {}, ...head.map((token) => element("th", { scope: "col" }, token)))),
      element("tbody", {}, ...body.map(([token, ...numbers]) => element("tr", {},
        element("th", { scope: "row" }, token), ...numbers.map((weight) => element("td", {}, weight.toFixed(3)))))));
  }

  rows() {
    const one = this.answer?.candidates[this.chosen];
    return one?.weights ? asRows("written", one.target, this.answer.source, one.weights) : [["written"]];
  }
}

function waits(model) {
  if (model.state === "refused") return "This model could not be trained. Choose another one.";
  return model.state === "training" ? "The model is learning: see below." : "The model waits for its turn to learn.";
}

function percent(model) {
  if (model.state === "training") return model.updates ? `learning, ${Math.floor(100 * (model.update ?? 0) / model.updates)}%` : "starts";
  if (model.state === "ready") return model.exact === null ? "ready" : `${model.exact.toFixed(1)}% exact`;
  return model.state;
}

// How good it is, with how much is known about that: Wilson's 95% interval of a share.
function quality(model) {
  if (!model || model.state !== "ready" || model.exact === null) return "";
  const n = model.validated_on;
  const size = `${model.parameters.toLocaleString("en")} parameters`;
  if (!n) return `${model.exact.toFixed(1)}% of its validation sentences exact; ${size}.`;
  const [p, z] = [model.exact / 100, 1.96];
  const centre = (p + z * z / (2 * n)) / (1 + z * z / n);
  const half = z / (1 + z * z / n) * Math.sqrt(p * (1 - p) / n + z * z / (4 * n * n));
  const interval = `${(100 * (centre - half)).toFixed(1)} to ${(100 * Math.min(1, centre + half)).toFixed(1)}`;
  return `${model.exact.toFixed(1)}% exact of ${n.toLocaleString("en")} held-out dates (95% interval ${interval}); ${size}.`;
}

function choice(one, index, best) {
  const input = element("input", { type: "radio", name: "candidate", value: String(index) });
  input.checked = index === 0;
  const bar = element("i");
  bar.style.width = `${100 * Math.exp(one.log_probability - best)}%`;
  const probability = Math.exp(one.log_probability);
  return element("label", {}, input, element("span", { dir: "auto" }, (one.text || "(nothing)") + (one.finished ? "" : " …")),
    element("span", { class: "bar", "aria-hidden": "true" }, bar),
    element("span", { class: "number" }, probability > 0.99 ? "p > 0.99" : `p = ${shown(probability, 2)}`));
}
