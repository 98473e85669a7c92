// The score laboratory's answer as a Python program: the same heads, score and mask as the server's.

import { plain } from "./fit_words.js";

// `settings` are what was asked for, `edits` the cells changed by hand: a Map from "query.key" to whether it is allowed.
export function python({ queries, keys }, settings, width, edits) {
  const { dim, score } = settings;
  const size = 2 * Math.floor(dim / 2);
  const words = (list) => `${JSON.stringify(list.join(" "))}.split()`;
  const made = SCORES[score]?.(size, plain(width)) ?? { lines: [], score: JSON.stringify(score) };
  const mask = maskLines(settings, edits, queries.length, keys.length);
  return [
    "import torch", "",
    "from regard import Mask, inspect",
    ...(made.name ? [`from regard.scores import ${made.name}`] : []), 
    "from regard.studio.heads import Heads",
    "from regard.studio.words import tokens", "",
    `queries, keys = ${words(queries)}, ${words(keys)}`,
    `heads = Heads(tokens(queries, ${size}, ${settings.spread}), tokens(keys, ${size}, ${settings.spread}), ${size}, ${plain(width)})`,
    "query, key = heads.query, heads.key  # (heads, words, dim), divided by the width",
    ...made.lines,
    ...mask,
    `found = inspect(query, key, heads.value, ${made.score}${mask.length ? ", mask" : ""})`,
    "found.weights(), found.entropy(), found.output",
  ].join("\n");
}

const SCORES = {
  cosine: (dim, width) => ({ name: "Cosine", lines: [], score: `Cosine(${dim} / ${width}**2)` }),
  bilinear: (dim) => ({
    name: "Bilinear",
    lines: [
      `score = Bilinear(${2 * dim + 1}, ${2 * dim + 1}, heads=4).double().requires_grad_(False)`,
      "score.matrix.copy_(heads.matrix)",
      "query, key = heads.tokens  # M is Wq' Wk: the tokens come without projections",
    ],
    score: "score",
  }),
  additive: (dim) => ({
    name: "Additive",
    lines: [
      `score = Additive.of_projected(${2 * dim}, heads=4).double().requires_grad_(False)`,
      "score.weight.fill_(1.0)",
      "query, key = torch.cat([query + 1, 1 - query], -1), torch.cat([-key, key], -1)",
    ],
    score: "score",
  }),
};

function maskLines(settings, edits, queries, keys) {
  const align = queries === keys ? "" : 'align="top_left"';
  const words = [];
  if (settings.causal) words.push(`Mask.causal(${align})`);
  if (settings.window) words.push(`Mask.window(${[settings.left, settings.right, ...(align ? [align] : [])].join(", ")})`);
  if (settings.lengths) words.push(`Mask.lengths(torch.tensor(${settings.length}))`);
  const cells = [...edits].map(([cell, may]) => [...cell.split(".").map(Number), may])
    .filter(([query, key]) => query < queries && key < keys);  // cells of a longer sentence are kept, and not used
  const lines = words.length ? [`mask = ${words.join(" & ")}`] : [];
  if (!cells.length) return lines;
  const list = (values) => `[${values.join(", ")}]`;
  return [
    ...lines,
    words.length ? `allowed = mask.to_sdpa((), ${queries}, ${keys}).clone()` : `allowed = torch.ones(${queries}, ${keys}, dtype=torch.bool)`,
    `allowed[${list(cells.map(([query]) => query))}, ${list(cells.map(([, key]) => key))}] = `
      + `torch.tensor(${list(cells.map(([, , may]) => (may ? "True" : "False")))})`,
    "mask = Mask.keep(allowed)",
  ];
}
