// A mask edited cell by cell on a heatmap: by mouse or finger, and by arrow keys and space.

import { shape, shown } from "./draw.js";

const STEPS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

export class MaskEditor {
  // `place` takes the keys, `svg` is the map, `words` says where we are; `toggle(query, key)` changes a cell.
  constructor(place, svg, words, toggle) {
    Object.assign(this, { place, svg, words, toggle, at: null, query: 0, key: 0, used: false });
    svg.addEventListener("pointerdown", (event) => {
      const cell = this.cell(event);
      if (!cell) return;
      this.last = cell.join();
      this.go(...cell);
      toggle(...cell);
    });
    svg.addEventListener("pointermove", (event) => {
      const cell = event.buttons ? this.cell(event) : null;
      if (!cell || cell.join() === this.last || event.pointerType === "touch") return;  // a finger scrolls
      this.last = cell.join();
      this.go(...cell);
      toggle(...cell);
    });
    place.addEventListener("keydown", (event) => {
      const step = STEPS[event.key];
      if (step) this.go(this.query + step[0], this.key + step[1]);
      else if (event.key === " " || event.key === "Enter") toggle(this.query, this.key);
      else return;
      event.preventDefault();
    });
    place.addEventListener("focus", () => { this.used = true; this.mark(); });
  }

  // The map was drawn: where its cells are, and what they hold.
  drawn(at, held) {
    this.at = at;
    this.held = held;
    this.query = Math.min(this.query, held.queries.length - 1);
    this.key = Math.min(this.key, held.keys.length - 1);
    this.mark();
  }

  go(query, key) {
    if (!this.held) return;
    this.used = true;
    this.query = Math.min(Math.max(query, 0), this.held.queries.length - 1);
    this.key = Math.min(Math.max(key, 0), this.held.keys.length - 1);
    this.mark();
  }

  cell(event) {
    if (!this.at) return null;
    const box = this.svg.getBoundingClientRect();
    const key = Math.floor((event.clientX - box.left - this.at.left) / this.at.width);
    const query = Math.floor((event.clientY - box.top - this.at.top) / this.at.height);
    const inside = query >= 0 && key >= 0 && query < this.held.queries.length && key < this.held.keys.length;
    return inside ? [query, key] : null;
  }

  mark() {
    this.svg.querySelector(".cursor")?.remove();
    if (!this.held) return;
    const { queries, keys, weights, allowed } = this.held;
    if (!this.used) { this.words.textContent = "Click on a cell, or use the arrow keys and space."; return; }
    const { left, top, width, height } = this.at;
    this.svg.append(shape("rect", { class: "cursor", x: left + this.key * width, y: top + this.query * height, width: width - 1, height: height - 1 }));
    const may = allowed[this.query][this.key];
    this.words.textContent = `Query “${queries[this.query]}” (${this.query + 1}), key “${keys[this.key]}” (${this.key + 1}): `
      + (may ? `weight ${shown(weights[this.query][this.key])}.` : "forbidden.");
  }
}
