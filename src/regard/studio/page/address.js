// The state of a room in the address: #room?name=value. What is at its default is left out.

const LONGEST = 6000;  // characters: what any browser and mail program passes on
const SOON = 250;  // milliseconds: browsers limit how often an address may change

let timer = 0;

export function read() {
  const text = location.hash.slice(1);
  const cut = text.includes("?") ? text.indexOf("?") : text.length;
  return { room: text.slice(0, cut), values: Object.fromEntries(new URLSearchParams(text.slice(cut + 1))) };
}

// Writes the state soon; `values` are strings or numbers, `defaults` those that need not be written.
export function write(room, values, defaults) {
  clearTimeout(timer);
  timer = setTimeout(() => {
    const query = new URLSearchParams();
    for (const [name, value] of Object.entries(values)) {
      const said = String(value);
      if (said !== String(defaults[name] ?? "") && said.length < LONGEST) query.set(name, said);
    }
    const text = query.toString();
    history.replaceState(null, "", `#${room}${text ? "?" + text : ""}`);
  }, SOON);
}

export function number(text, otherwise, low, high) {
  const value = text === undefined || text === "" ? NaN : Number(text);
  return Number.isFinite(value) && value >= low && value <= high ? value : otherwise;
}

export function among(text, choices, otherwise) {
  return choices.includes(text) ? text : otherwise;
}
