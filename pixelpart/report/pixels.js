// What the explorer shows, from the JSON that explorer.py writes: results, values and pixels. report.js has the controls.
"use strict";
const UNKNOWN = 65535;

// -- reading

async function readSet(set) {
  const [pictures, objects] = await Promise.all([set.pictures, set.objects].map((text) => text && inflate(text)));
  return { ...set, pictures: integrate(pictures, set), objects };
}

function readRun(run, place, set, data) {
  const states = run.states.map((state) => {
    const top = new Uint16Array(decode(state.top).buffer),
      rows = top.length / (3 * data.top_classes);
    const known = (value) => (value === UNKNOWN ? null : value / 10000);
    let pixels = null;
    return {
      epoch: state.epoch,
      classes: (row) =>
        Array.from({ length: data.top_classes }, (_, k) => top.subarray(3 * (row * data.top_classes + k)))
          .filter((one) => one[0] !== UNKNOWN)
          .map((one) => ({ class: one[0], 1: known(one[1]), 2: known(one[2]) })),
      load: () =>
        (pixels ??= inflate(state.pixels).then((bytes) => {
          const area = rows * set.shape[1] * set.shape[2];
          integrate(bytes.subarray(0, 2 * area), set);
          return {
            heat: bytes.subarray(0, area),
            budget: bytes.subarray(area, 2 * area),
            change: bytes.subarray(2 * area),
          };
        })),
    };
  });
  return { ...run, place, set, states };
}

function decode(text) {
  return Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
}

async function inflate(text) {
  const stream = new Blob([decode(text)]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

function integrate(bytes, { shape: [, height, width] }) {
  // in place, the inverse of `differences` in explorer.py
  for (let place = 1; place < bytes.length; place++) if (place % width) bytes[place] += bytes[place - 1];
  for (let place = width; place < bytes.length; place++)
    if (place % (width * height) >= width) bytes[place] += bytes[place - width];
  return bytes;
}

function best(top, when) {
  // the predicted class
  return top.reduce((found, one) => ((one[when] ?? -1) > (found[when] ?? -1) ? one : found));
}

function rowOf(run, image) {
  // the row of an image in a run's arrays; -1 if the run has no pictures of it
  return run.set === image.set ? run.rows[image.place] : -1;
}

function stateOf(run, epoch) {
  // the one of this epoch, or the closest earlier one, or the first
  if (!epoch || run.states.length < 2) return run.states[0];
  const byEpoch = [...run.states].sort((a, b) => a.epoch - b.epoch);
  return byEpoch.findLast((state) => state.epoch <= Number(epoch)) ?? byEpoch[0];
}

function describe(run, epoch) {
  const state = stateOf(run, epoch);
  if (!epoch) return `${run.checkpoint} checkpoint${state.epoch === null ? "" : `, epoch ${state.epoch}`}`;
  let text = state.epoch === null ? `${run.checkpoint} checkpoint` : `epoch ${state.epoch}`;
  if (state.epoch !== Number(epoch)) text += ` (epoch ${epoch} was not kept)`;
  if (state.epoch !== null && state.epoch <= run.burn_in)
    text += ", in burn-in: trained with the same budget at all pixels";
  return text;
}

function result(run, image, attack) {
  // right, broken or wrong; null where it is not known
  const row = rowOf(run, image);
  if (row < 0) return null;
  const top = run.states[0].classes(row);
  if (best(top, 1).class !== image.label) return "wrong";
  if (attack === "shown") return best(top, 2).class === image.label ? "right" : "broken";
  return { 1: "right", 0: "broken" }[run.flags.find((one) => one.name === attack)?.values[row]] ?? null;
}

// -- values of pixels

function valuesOf(run, row, image, pixels, data) {
  // functions of a pixel's number p = y * width + x
  const [channels, height, width] = image.set.shape;
  const area = height * width;
  const [heat, budget] = [pixels.heat, pixels.budget].map((one) => one.subarray(row * area, (row + 1) * area));
  const steps = pixels.change.subarray(row * channels * area);
  const change = (p, c) => steps[c * area + p] / data.change_levels - 1; // in units of eps
  const toBudget = (level) => data.budget[0] + (level / 255) * (data.budget[1] - data.budget[0]);
  const mean = (value) => {
    let sum = 0;
    for (let c = 0; c < channels; c++) sum += value(c);
    return sum / channels;
  };
  const picture = painterOf(image);
  return {
    picture,
    heat: (p) => heat[p] / 255,
    budget: (p) => toBudget(budget[p]),
    budgetLevel: (p) => budget[p],
    budgetRange: () => {
      const ends = [Math.min, Math.max].map((end) => fraction(toBudget(budget.reduce((a, b) => end(a, b)))));
      return ends[0] === ends[1] ? `${ends[0]} everywhere` : ends.join(" to ");
    },
    change: (p) => mean((c) => change(p, c)),
    share: (p) => (mean((c) => Math.abs(change(p, c))) * run.eps) / toBudget(budget[p]),
    attacked: (p, rgb) => {
      picture(p, rgb);
      for (let c = 0; c < 3; c++) rgb[c] += 255 * run.eps * change(p, channels === 1 ? 0 : c);
    },
  };
}

function readout(values, [x, y], [channels, , width]) {
  const p = y * width + x;
  const tones = [values.picture, values.attacked].map((paint) => {
    const rgb = [0, 0, 0];
    paint(p, rgb);
    return rgb.slice(0, channels).map(Math.round).join(" ");
  });
  const share = Number.isFinite(values.share(p)) ? `, ${Math.round(100 * values.share(p))} % of the budget` : "";
  return (
    `x ${x}, y ${y}: heat ${values.heat(p).toFixed(2)}, budget ${fraction(values.budget(p))}, ` +
    `${channels === 1 ? "grey" : "colour"} ${tones.join(" → ")}${share}`
  );
}

function paintCanvas(canvas, width, height, paint) {
  // paint(p, target) writes red, green and blue of pixel p
  if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
  const context = canvas.getContext("2d"),
    found = context.createImageData(width, height),
    rgb = [0, 0, 0];
  for (let p = 0; p < width * height; p++) {
    paint(p, rgb);
    found.data.set(rgb, 4 * p);
    found.data[4 * p + 3] = 255;
  }
  context.putImageData(found, 0, 0);
}

function painterOf(image) {
  // writes the colour of pixel p of a picture, with levels 0 to 255
  const [channels, height, width] = image.set.shape;
  const area = height * width;
  const levels = image.set.pictures.subarray(image.place * channels * area);
  return (p, rgb) => {
    for (let c = 0; c < 3; c++) rgb[c] = levels[(channels === 1 ? 0 : c) * area + p];
  };
}

function boundary(inside, width, height) {
  // the edges between pixels of the object and others, as an SVG path
  const on = (x, y) => x >= 0 && y >= 0 && x < width && y < height && inside[y * width + x] > 0;
  let path = "";
  for (let y = 0; y <= height; y++) {
    for (let x = 0; x <= width; x++) {
      if (on(x, y) !== on(x, y - 1)) path += `M${x} ${y}h1`;
      if (on(x, y) !== on(x - 1, y)) path += `M${x} ${y}v1`;
    }
  }
  return path;
}

function percent(share) {
  return `${(100 * share).toFixed(0)} %`;
}

function fraction(value) {
  return `${Number((255 * value).toFixed(2))}/255`;
}
