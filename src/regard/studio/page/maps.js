// Attention weights as pictures: a heatmap with a token on every row and column, and lines between two sentences.

import { blank, room, shape, textWidth } from "./draw.js";

const ROW = 23, LEAST = 23, PAD = 10, WIDEST = 64, HIGHEST = 34, SWATCH = 32;
const STEPS = [0, 0.04, 0.16, 0.36, 0.64, 1];  // of the legend: its ink grows evenly with their square roots

// The ink of a weight: its square root, so that an even spread over many keys can still be seen.
export function ink(weight) {
  return Math.sqrt(Math.min(1, Math.max(0, weight)));
}

// Where the cells of a map lie: labels keep their whole width, so the map may be wider than its place and scrolls.
export function layout(rows, columns, labels) {
  const names = [...rows, `${labels.rows} ↓`];
  const left = Math.ceil(Math.max(...names.map((token) => textWidth(token)))) + PAD;
  const widest = Math.max(...columns.map((token) => textWidth(token)));
  const width = Math.max(LEAST, Math.ceil(widest) + PAD);
  return { left, top: 42, width, height: ROW, total: left + columns.length * width + 2 };
}

// The same with its cells grown into a place that is wider than needed.
function grown(at, columns, place) {
  const width = Math.floor(Math.min(WIDEST, Math.max(at.width, (place - at.left - 2) / columns)));
  return { ...at, width, height: Math.min(HIGHEST, Math.max(ROW, Math.round(width * 0.62))) };
}

// Draws weights (rows x columns). `labels`: what rows and columns are; `allowed`: where the mask lets look, or null.
export function heatmap(svg, { rows, columns, weights, labels, allowed = null }) {
  const at = grown(layout(rows, columns, labels), columns.length, svg.parentElement.clientWidth);
  const [wide, high] = [columns.length * at.width, rows.length * at.height];
  blank(svg, at.left + Math.max(wide + 2, 52 + SWATCH * STEPS.length), at.top + high + 44);
  svg.append(shape("text", { x: at.left, y: 12, class: "title" }, `${labels.columns} →`));
  svg.append(shape("text", { x: at.left - 6, y: 12, "text-anchor": "end", class: "title" }, `${labels.rows} ↓`));
  columns.forEach((token, j) => svg.append(
    shape("text", { x: at.left + (j + 0.5) * at.width, y: at.top - 8, "text-anchor": "middle" }, token)));
  rows.forEach((token, i) => svg.append(
    shape("text", { x: at.left - 6, y: at.top + (i + 0.5) * at.height + 4, "text-anchor": "end" }, token)));
  cellsOf(svg, weights, allowed, at, 1);
  svg.append(legend(at.left, at.top + high + 14));
  return at;
}

// The same without words, as wide as its place: to be compared with others of its kind beside it.
export function thumbnail(svg, { weights, allowed }) {
  const side = Math.max(3, Math.min(18, (svg.parentElement.clientWidth - 4) / Math.max(weights.length, weights[0].length)));
  const at = { left: 2, top: 2, width: side, height: side };
  blank(svg, weights[0].length * side + 4, weights.length * side + 4);
  cellsOf(svg, weights, allowed, at, 0.5);
}

function cellsOf(svg, weights, allowed, at, gap) {
  svg.append(shape("rect", { x: at.left, y: at.top, width: weights[0].length * at.width, height: weights.length * at.height, class: "frame" }));
  const cells = shape("g");
  weights.forEach((row, i) => row.forEach((weight, j) => {
    if (weight < 5e-4) return;
    cells.append(shape("rect", {
      class: "cell", x: at.left + j * at.width, y: at.top + i * at.height, width: at.width - gap,
      height: at.height - gap, "fill-opacity": ink(weight).toFixed(3),
    }));
  }));
  svg.append(cells);
  if (allowed) svg.append(shape("path", { class: "forbidden", d: crosses(allowed, at) }));
}

// A small cross in every cell that the mask forbids.
function crosses(allowed, at) {
  const r = Math.min(at.width, at.height) * 0.22;
  let d = "";
  allowed.forEach((row, i) => row.forEach((may, j) => {
    if (may) return;
    const [x, y] = [at.left + (j + 0.5) * at.width, at.top + (i + 0.5) * at.height];
    d += `M${x - r} ${y - r}l${2 * r} ${2 * r}M${x - r} ${y + r}l${2 * r} ${-2 * r}`;
  }));
  return d;
}

function legend(x, y) {
  const group = shape("g", { class: "tick" });
  group.append(shape("text", { x, y: y + 10 }, "weight"));
  STEPS.forEach((weight, k) => {
    const place = x + 48 + k * SWATCH;
    group.append(shape("rect", { class: "frame", x: place, y, width: SWATCH, height: 12 }));
    group.append(shape("rect", { class: "swatch", x: place, y, width: SWATCH, height: 12, "fill-opacity": ink(weight) }));
    group.append(shape("text", { x: place + SWATCH / 2, y: y + 25, "text-anchor": "middle" }, String(weight)));
  });
  return group;
}

// Lines from the source at the left to the target at the right, one for each weight that can be seen.
export function lines(svg, { source, target, weights, labels }) {
  const left = Math.ceil(Math.max(...source.map((token) => textWidth(token)), 40)) + PAD;
  const right = Math.ceil(Math.max(...target.map((token) => textWidth(token)), 60)) + PAD;
  const width = Math.max(left + right + 110, Math.min(room(svg), left + right + 300));
  const rows = Math.max(source.length, target.length);
  const top = 24, height = rows * (ROW - 3);
  blank(svg, width, top + height + 6);
  const place = (index, count) => top + height * ((index + 0.5) / count);
  const down = (i) => place(i + (rows - source.length) / 2, rows);
  const up = (i) => place(i + (rows - target.length) / 2, rows);
  svg.append(shape("text", { x: left - 6, y: 12, "text-anchor": "end", class: "title" }, labels.columns));
  svg.append(shape("text", { x: width - right + 6, y: 12, class: "title" }, labels.rows));
  weights.forEach((row, i) => row.forEach((weight, j) => {
    if (weight < 0.02) return;
    const [x0, y0, x1, y1] = [left, down(j), width - right, up(i)];
    const middle = (x0 + x1) / 2;
    svg.append(shape("path", {
      class: "link", d: `M${x0} ${y0}C${middle} ${y0} ${middle} ${y1} ${x1} ${y1}`,
      "stroke-width": (0.6 + 3.4 * weight).toFixed(2), "stroke-opacity": (0.08 + 0.92 * weight).toFixed(3),
    }));
  }));
  source.forEach((token, j) => svg.append(shape("text", { x: left - 6, y: down(j) + 4, "text-anchor": "end" }, token)));
  target.forEach((token, i) => svg.append(shape("text", { x: width - right + 6, y: up(i) + 4 }, token)));
}

// An alignment with the source across where that fits the place, and down the page where it does not.
export function alignment(svg, source, target, weights) {
  const labels = { rows: "written", columns: "source" };
  if (layout(target, source, labels).total <= svg.parentElement.clientWidth) {
    return heatmap(svg, { rows: target, columns: source, weights, labels });
  }
  const turned = source.map((_, j) => weights.map((row) => row[j]));
  return heatmap(svg, { rows: source, columns: target, weights: turned, labels: { rows: "source", columns: "written" } });
}

// The weights as a table of rows for a file: a first line of column tokens, then a row for each row token.
export function asRows(corner, rows, columns, weights) {
  return [[corner, ...columns], ...rows.map((token, i) => [token, ...weights[i]])];
}
