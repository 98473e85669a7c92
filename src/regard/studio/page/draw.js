// Drawing in SVG: elements, scales, axes. Text is always textContent.

const SPACE = "http://www.w3.org/2000/svg";
const RULER = document.createElement("canvas").getContext("2d");
const FAMILY = 'system-ui, "Noto Sans", "DejaVu Sans", "Noto Sans CJK JP", sans-serif';

export function shape(name, attributes = {}, text) {
  const made = document.createElementNS(SPACE, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

export function element(name, attributes = {}, ...content) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...content);
  return made;
}

// Empties a drawing but for its <title>, and gives it a size in pixels of the screen.
export function blank(svg, width, height) {
  const title = svg.querySelector(":scope > title");
  svg.replaceChildren(...(title ? [title] : []));
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("width", width);
  svg.setAttribute("height", height);
  return svg;
}

export function room(svg, least = 280) {
  return Math.max(least, Math.floor(svg.parentElement.clientWidth));
}

export function textWidth(text, size = 12) {
  RULER.font = `${size}px ${FAMILY}`;
  return RULER.measureText(text).width;
}

export function linear(low, high, from, to) {
  const slope = (to - from) / (high - low || 1);
  const scale = (value) => from + (value - low) * slope;
  scale.back = (place) => low + (place - from) / slope;
  return scale;
}

// Round numbers between two, about `count` of them.
export function ticks(low, high, count = 6) {
  const rough = (high - low) / count || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough);
  const found = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++) found.push(k * step);
  return found;
}

export function shown(value, digits = 3) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  if (value !== 0 && (Math.abs(value) >= 1e6 || Math.abs(value) < 1e-4)) return value.toExponential(2).replace("-", "−");
  return String(Number(value.toPrecision(digits))).replace("-", "−");
}

// An axis below or at the left: ticks, numbers and a title, in a group of its own.
export function axis(side, scale, [low, high], at, title, { count = 6, across = null } = {}) {
  const group = shape("g", { class: "tick" });
  const [first, last] = [scale(low), scale(high)];
  for (const value of ticks(low, high, count)) {
    const place = scale(value);
    if (side === "below") {
      if (across) group.append(shape("path", { class: "gridline", d: `M${place} ${across[0]}V${across[1]}` }));
      group.append(shape("path", { class: "axis", d: `M${place} ${at}v5` }));
      group.append(shape("text", { x: place, y: at + 17, "text-anchor": "middle" }, shown(value, 6)));
    } else {
      if (across) group.append(shape("path", { class: "gridline", d: `M${across[0]} ${place}H${across[1]}` }));
      group.append(shape("path", { class: "axis", d: `M${at} ${place}h-5` }));
      group.append(shape("text", { x: at - 8, y: place + 4, "text-anchor": "end" }, shown(value, 6)));
    }
  }
  if (side === "below") {
    group.append(shape("path", { class: "axis", d: `M${first} ${at}H${last}` }));
    group.append(shape("text", { x: last, y: at + 33, "text-anchor": "end", class: "title" }, title));
  } else {
    group.append(shape("path", { class: "axis", d: `M${at} ${first}V${last}` }));
    group.append(shape("text", { x: at - 36, y: last - 9, class: "title" }, title));
  }
  return group;
}

// A path through points; it breaks where a value is null.
export function through(xs, ys) {
  let d = "", pen = false;
  for (let i = 0; i < xs.length; i++) {
    if (ys[i] === null) { pen = false; continue; }
    d += `${pen ? "L" : "M"}${xs[i].toFixed(2)} ${ys[i].toFixed(2)}`;
    pen = true;
  }
  return d;
}

// Calls back with the drawing's new width when there is more or less room for it.
export function onResize(node, redraw) {
  let last = 0;
  new ResizeObserver(() => {
    const now = node.clientWidth;
    if (now && now !== last) { last = now; redraw(); }
  }).observe(node);
}
