// Pictures and numbers as files: SVG with its colours written into it, PNG, and CSV.

import { element, shape } from "./draw.js";
import { tell } from "./ask.js";

const LOOK = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-opacity", "stroke-linecap", "stroke-linejoin",
  "stroke-dasharray", "opacity", "font-size", "font-family", "font-weight", "text-anchor", "visibility"];
const FINER = 2;  // pixels of a PNG for each of the screen
const MARGIN = 8;

// The buttons SVG, PNG and CSV of a figure; `svg` may be null, `rows` gives a list of lists for the CSV.
export function offer(place, name, svg, rows) {
  const buttons = [];
  if (svg) {
    buttons.push(["SVG", () => download(new Blob([standalone(svg)], { type: "image/svg+xml" }), `${name}.svg`)]);
    buttons.push(["PNG", async () => download(await raster(svg), `${name}.png`)]);
  }
  if (rows) {
    buttons.push(["CSV", () => download(new Blob([csv(rows())], { type: "text/csv" }), `${name}.csv`)]);
  }
  place.replaceChildren(...buttons.map(([kind, act]) => {
    const button = element("button", { type: "button", "aria-label": `Save as ${kind}: ${name}` }, kind);
    button.addEventListener("click", async () => {
      try { await act(); } catch { tell(`The ${kind} file could not be made. Try another format.`); }
    });
    return button;
  }));
}

function download(blob, name) {
  const link = element("a", { href: URL.createObjectURL(blob), download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
  document.getElementById("saved").textContent = `${name} is saved.`;
}

// The drawing as a file of its own: every style that the page gives it is written on the elements.
export function standalone(svg) {
  const copy = svg.cloneNode(true);
  const originals = [svg, ...svg.querySelectorAll("*")];
  [copy, ...copy.querySelectorAll("*")].forEach((node, index) => {
    const style = getComputedStyle(originals[index]);
    if (node.tagName !== "title" && node.tagName !== "svg") {
      for (const property of LOOK) {
        const value = style.getPropertyValue(property);
        if (value && !(node.tagName !== "text" && property.startsWith("font"))) node.setAttribute(property, value);
      }
    }
    for (const given of [...node.attributes]) {
      if (/^(class|id|tabindex|role|aria-|data-)/.test(given.name)) node.removeAttribute(given.name);
    }
  });
  const [width, height] = [Number(svg.getAttribute("width")), Number(svg.getAttribute("height"))];
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  copy.setAttribute("viewBox", `${-MARGIN} ${-MARGIN} ${width + 2 * MARGIN} ${height + 2 * MARGIN}`);
  copy.setAttribute("width", width + 2 * MARGIN);
  copy.setAttribute("height", height + 2 * MARGIN);
  const paper = getComputedStyle(document.body).backgroundColor;
  copy.prepend(shape("rect", { x: -MARGIN, y: -MARGIN, width: "100%", height: "100%", fill: paper }));
  return new XMLSerializer().serializeToString(copy);
}

async function raster(svg) {
  const address = URL.createObjectURL(new Blob([standalone(svg)], { type: "image/svg+xml" }));
  try {
    const image = new Image();
    image.src = address;
    await image.decode();
    const canvas = element("canvas");
    canvas.width = image.width * FINER;
    canvas.height = image.height * FINER;
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    return await new Promise((done, fail) => canvas.toBlob((blob) => (blob ? done(blob) : fail()), "image/png"));
  } finally {
    URL.revokeObjectURL(address);
  }
}

function csv(rows) {
  const cell = (value) => {
    const text = value === null || value === undefined ? "" : String(value);
    return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return rows.map((row) => row.map(cell).join(",")).join("\r\n") + "\r\n";
}
