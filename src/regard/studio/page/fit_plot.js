// The regression room's picture: points, curve and band above, the weights at the query below.

import { axis, blank, linear, room, shape, shown, through } from "./draw.js";

const LEFT = 46, RIGHT = 10, TOP = 20, GAP = 34, STRIP = 74, BOTTOM = 40;
const LEVELS = 7;  // sizes of points, by their weight

export class FitPlot {
  constructor(svg) {
    this.svg = svg;
    this.view = null;
  }

  // The frame: axes of a view {x: [low, high], y: [low, high]}, and the layers that move within it.
  frame(view, names) {
    const width = room(this.svg);
    const height = Math.round(Math.max(340, Math.min(560, width * 0.62)));
    this.view = view;
    this.bottom = height - BOTTOM - STRIP - GAP;
    this.base = height - BOTTOM;
    this.x = linear(...view.x, LEFT, width - RIGHT);
    this.y = linear(...view.y, this.bottom, TOP);
    const svg = blank(this.svg, width, height);
    const count = width < 480 ? 5 : 8;
    svg.append(axis("left", this.y, view.y, LEFT, names.y, { across: [LEFT, width - RIGHT] }));
    svg.append(axis("below", this.x, view.x, this.base, names.x, { count }));
    svg.append(shape("path", { class: "axis", d: `M${LEFT} ${this.bottom}H${width - RIGHT}` }));
    this.strip = shape("g", { class: "tick" });
    this.layers = {
      band: shape("path", { class: "banded" }),
      weights: shape("path", { class: "weighted" }),
      points: shape("path", { class: "points", "stroke-width": 4.5 }),
      heavy: Array.from({ length: LEVELS }, (_, level) =>
        shape("path", { class: "heavy", "stroke-width": (5 + 8 * ((level + 1) / LEVELS)).toFixed(2),
          "stroke-opacity": (0.35 + 0.65 * ((level + 1) / LEVELS)).toFixed(2) })),
      curve: shape("path", { class: "fitted" }),
      query: shape("path", { class: "querying" }),
      answer: shape("circle", { class: "answered", r: 6, visibility: "hidden" }),
    };
    const { band, points, heavy, curve, weights, query, answer } = this.layers;
    svg.append(this.strip, band, points, ...heavy, curve, weights, query, answer);
  }

  // Everything that moves: points {x, y}, and the server's answer, or null while there is none.
  draw(points, answer, query) {
    const { band, points: light, heavy, curve, weights, query: line, answer: dot } = this.layers;
    const place = this.x(query);
    line.setAttribute("d", `M${place.toFixed(2)} ${TOP}V${this.base}`);
    const heaviest = answer && answer.weights.length === points.x.length ? Math.max(...answer.weights) : 0;
    const paths = Array(LEVELS + 1).fill("");
    let bars = "";
    for (let i = 0; i < points.x.length; i++) {
      const across = this.x(points.x[i]).toFixed(2);
      const share = heaviest > 0 ? answer.weights[i] / heaviest : 0;
      const level = share > 0.02 ? Math.max(1, Math.ceil(share * LEVELS)) : 0;
      paths[level] += `M${across} ${this.y(points.y[i]).toFixed(2)}h0`;
      if (share > 0.002) bars += `M${across} ${this.base}v${(-share * STRIP).toFixed(2)}`;
    }
    light.setAttribute("d", paths[0]);
    heavy.forEach((path, level) => path.setAttribute("d", paths[level + 1]));
    weights.setAttribute("d", bars);
    this.strip.replaceChildren(
      shape("text", { x: LEFT - 8, y: this.base - STRIP + 4, "text-anchor": "end" }, heaviest ? shown(heaviest, 2) : ""),
      shape("text", { x: LEFT - 8, y: this.base + 4, "text-anchor": "end" }, "0"),
      shape("text", { x: LEFT - 36, y: this.base - STRIP - 10, class: "title" }, "weight at the query"),
      shape("path", { class: "axis", d: `M${LEFT} ${this.base}v${-STRIP}` }));
    if (!answer) {
      for (const path of [band, curve]) path.setAttribute("d", "");
      dot.setAttribute("visibility", "hidden");
      return;
    }
    const xs = answer.places.map(this.x);
    curve.setAttribute("d", through(xs, answer.mean.map((v) => (v === null ? null : this.y(v)))));
    band.classList.toggle("stale", Boolean(answer.staleBand));
    band.setAttribute("d", answer.upper ? this.area(xs, answer.lower, answer.upper) : "");
    dot.setAttribute("visibility", answer.at.mean === null ? "hidden" : "visible");
    if (answer.at.mean !== null) {
      dot.setAttribute("cx", this.x(answer.at.query));
      dot.setAttribute("cy", this.y(answer.at.mean));
    }
  }

  // What lies between two curves, piece by piece where they have gaps.
  area(xs, lower, upper) {
    let d = "", start = 0;
    for (let i = 0; i <= xs.length; i++) {
      if (i < xs.length && upper[i] !== null) continue;
      if (i - start > 1) {
        const up = xs.slice(start, i).map((x, k) => `${x.toFixed(2)} ${this.y(upper[start + k]).toFixed(2)}`);
        const down = xs.slice(start, i).map((x, k) => `${x.toFixed(2)} ${this.y(lower[start + k]).toFixed(2)}`);
        d += `M${up.join("L")}L${down.reverse().join("L")}Z`;
      }
      start = i + 1;
    }
    return d;
  }

  // A place on the screen in the plot's own numbers; null below the plot.
  at(event) {
    const box = this.svg.getBoundingClientRect();
    const [across, down] = [event.clientX - box.left, event.clientY - box.top];
    return { x: this.x.back(across), y: down <= this.bottom ? this.y.back(down) : null, across, down };
  }
}

// The view that holds all points with a margin, in round numbers.
export function viewOf(points, empty = { x: [0, 4], y: [-1, 7] }) {
  if (!points.x.length) return empty;
  const around = (values) => {
    let low = Infinity, high = -Infinity;
    for (const value of values) { low = Math.min(low, value); high = Math.max(high, value); }
    const margin = (high - low || Math.abs(high) || 1) * 0.05;
    return [low - margin, high + margin];
  };
  return { x: around(points.x), y: around(points.y) };
}
