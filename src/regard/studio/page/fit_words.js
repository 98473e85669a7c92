// A fit in words: the formula with its numbers, a sentence, and the lines of Python that make it.

import { shown } from "./draw.js";

const TERMS = 4;  // of the sum that are written out

// f(x) = w1 × y1 + w2 × y2 + … = mean, the heaviest points first.
export function formula(answer, points) {
  if (answer.at.mean === null) return "";
  const heavy = answer.weights.map((weight, i) => [weight, points.y[i]]).sort((a, b) => Math.abs(b[0]) - Math.abs(a[0]));
  const terms = heavy.slice(0, TERMS).filter(([weight]) => weight !== 0).map(([w, y]) => `${shown(w, 2)} × ${shown(y, 2)}`);
  const rest = heavy.length > terms.length ? " + …" : "";
  return `f(${shown(answer.at.query)}) = ${terms.join(" + ")}${rest} = ${shown(answer.at.mean)}`;
}

export function words(answer, level) {
  const at = answer.at;
  if (at.mean === null) return `At ${shown(at.query)} no point is within the window: there is no answer. Widen the kernel.`;
  const band = at.lower === undefined || at.lower === null ? ""
    : `, ${shown(100 * level)}% band ${shown(at.lower)} to ${shown(at.upper)}`;
  const worth = answer.degrees_of_freedom === null ? ""
    : `; the whole curve is worth ${shown(answer.degrees_of_freedom)} parameters`;
  return [
    `At ${shown(at.query)} the fit is ${shown(at.mean)}${band}.`,
    `It rests on as much as ${shown(at.rests_on)} points of equal weight${worth}.`,
    answer.gaps ? "The curve has gaps where no point is within the window." : "",
    ...answer.notes,
  ].filter(Boolean).join(" ");
}

export function python({ kernel, width, degree, query, level }) {
  return [
    "from regard.regression import NadarayaWatson", "",
    "# X: (points, 1), y: (points,), places: (places, 1)",
    `model = NadarayaWatson("${kernel}", bandwidth=${plain(width)}${degree ? ", degree=1" : ""}).fit(X, y)`,
    `model.predict([[${plain(query)}]])`,
    `model.weights([[${plain(query)}]])`,
    `model.confidence_band(places, level=${level})`,
  ].join("\n");
}

// A number as code and addresses write it.
export function plain(value) {
  return String(Number(value.toPrecision(4)));
}
