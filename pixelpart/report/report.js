// The explorer of the report: the page's controls and pictures. Strings reach the page as text, never as HTML.
document.documentElement.classList.add("js"); // hides the static pictures
document.addEventListener("DOMContentLoaded", () =>
  start().catch((error) => {
    document.documentElement.classList.remove("js");
    console.error(error);
  }),
);

const KINDS = ["picture", "heat map", "budget", "attacked", "change"];
const RESULTS = { right: "right", broken: "right before, wrong under attack", wrong: "wrong before the attack" };
const OVER = [228, 87, 46]; // more change than the training budget
const DEFAULTS = { epoch: "", class: "", sort: "order", change: "signed", outline: "1" };
const SORTS = {
  order: "classes in turn",
  class: "class",
  before: "true class least probable, before the attack",
  after: "true class least probable, attacked",
  fall: "true class loses most by the attack",
  differ: "runs differ most, attacked",
};

async function start() {
  const data = JSON.parse(document.getElementById("explorer-data").textContent);
  const at = (name) => document.getElementById(`explorer-${name}`);
  const colours = Object.fromEntries(Object.entries(data.colours).map(([name, text]) => [name, decode(text)]));
  const sets = await Promise.all(data.sets.map(readSet));
  const runs = data.runs.map((run, place) => readRun(run, place, sets[run.set], data));
  const images = sets.flatMap((set) =>
    set.ids.map((id, place) => {
      const label = set.labels[place];
      return { id, set, place, label, name: set.classes[label], file: set.files[place] };
    }),
  );
  const explained = runs.filter((run) => run.states.length);
  const checkpoints = [...new Set(explained.map((run) => run.checkpoint))];
  const kept = explained.filter((run) => run.states.length > 1).flatMap((run) => run.states.map((one) => one.epoch));
  const epochs = [...new Set(kept)].filter((epoch) => epoch !== null).sort((a, b) => a - b); // stops of the slider
  const defaults = { ...DEFAULTS, image: images[0].id };
  const view = { ...defaults, hidden: new Set(), where: runs.map(() => "") };
  let listed = images; // those that match the filters, in their order
  let pinned = null; // a pixel that was clicked, shown while the pointer is elsewhere
  let marked = images[0]; // whose thumbnail is marked as the current one
  let drawing = 0;

  const shown = () => runs.filter((run) => !view.hidden.has(run.place));
  const current = () => images.find((image) => image.id === view.image);

  // -- filters and sorting, by the explained checkpoint

  function matches(run, image) {
    const [, attack, wanted] = /^(.*):(.*)$/.exec(view.where[run.place]) ?? [];
    if (!wanted) return true;
    const found = result(run, image, attack === "natural" ? "shown" : attack);
    if (found === null) return false;
    if (attack === "natural") return (wanted === "right") === (found !== "wrong");
    return wanted === "broken" ? found === "broken" : (wanted === "right") === (found === "right");
  }

  function sortKey(image) {
    if (view.sort === "class") return image.label;
    const pairs = shown()
      .filter((run) => rowOf(run, image) >= 0)
      .map((run) => run.states[0].classes(rowOf(run, image)).find((one) => one.class === image.label))
      .filter((own) => own[1] !== null && own[2] !== null);
    if (!pairs.length) return Infinity; // at the end
    const mean = (value) => pairs.reduce((sum, own) => sum + value(own), 0) / pairs.length;
    if (view.sort === "before") return mean((own) => own[1]);
    if (view.sort === "after") return mean((own) => own[2]);
    if (view.sort === "fall") return mean((own) => own[2] - own[1]);
    return Math.min(...pairs.map((own) => own[2])) - Math.max(...pairs.map((own) => own[2]));
  }

  function list() {
    listed = images.filter(
      (image) => (!view.class || image.name === view.class) && runs.every((run) => matches(run, image)),
    );
    if (view.sort !== "order") {
      const keys = new Map(listed.map((image) => [image, sortKey(image)]));
      listed.sort((a, b) => (keys.get(a) > keys.get(b)) - (keys.get(a) < keys.get(b)));
    }
    if (listed.length && !listed.includes(current())) view.image = listed[0].id;
    for (const image of listed) label(image);
    at("gallery").replaceChildren(...listed.map((image) => image.button));
    at("count").textContent =
      listed.length === images.length ? `${images.length} images` : `${listed.length} of ${images.length} images`;
    at("none").hidden = listed.length > 0;
    at("stage").hidden = !listed.length;
  }

  // -- the view

  async function draw() {
    const ticket = ++drawing;
    const image = current();
    marked.button.removeAttribute("aria-current");
    marked.button.tabIndex = -1;
    marked = image;
    image.button.setAttribute("aria-current", "true");
    image.button.tabIndex = 0; // Tab enters and leaves the list; arrow keys move in it
    at("title").replaceChildren(`Test image ${image.id.split(".")[0]}: `, element("b", { text: image.name }), image.file && ` (${image.file})`);
    at("place").textContent = `${listed.indexOf(image) + 1} of ${listed.length}`;
    reveal(image.button);
    at("epoch").value = view.epoch ? epochs.indexOf(Number(view.epoch)) : epochs.length;
    at("epoch-name").textContent = view.epoch ? `epoch ${view.epoch}` : `${checkpoints.join(" or ")} checkpoint`;
    at("epoch").setAttribute("aria-valuetext", at("epoch-name").textContent);
    at("outline").checked = view.outline === "1";
    at("outline").closest("label").hidden = !sets.some((set) => set.objects);
    for (const mode of ["signed", "share"]) {
      at(mode).checked = view.change === mode;
      at(`key-${mode}`).hidden = view.change !== mode;
    }
    at("link").href = `#${toHash()}`;
    at("stage").setAttribute("aria-busy", "true");
    const load = (run) => (rowOf(run, image) < 0 ? null : stateOf(run, view.epoch).load());
    const loaded = await Promise.all(runs.map(load));
    if (ticket !== drawing) return; // another view was chosen meanwhile
    runs.forEach((run, place) => drawRun(run, image, loaded[place]));
    point(pinned);
    at("stage").setAttribute("aria-busy", "false");
  }

  function drawRun(run, image, pixels) {
    const row = rowOf(run, image);
    const state = stateOf(run, view.epoch);
    const parts = run.parts;
    parts.root.hidden = view.hidden.has(run.place);
    parts.body.hidden = row < 0;
    parts.missing.hidden = row >= 0;
    parts.about.textContent = row < 0 ? "" : describe(run, view.epoch);
    run.values = row < 0 ? null : valuesOf(run, row, image, pixels, data);
    if (row < 0) return;
    const values = run.values;
    const paints = [
      values.picture,
      (p, rgb) => colour("heat", 255 * values.heat(p), rgb),
      (p, rgb) => colour("budget", values.budgetLevel(p), rgb),
      values.attacked,
      view.change === "signed"
        ? (p, rgb) => colour("signed", 127.5 + 127.5 * values.change(p), rgb)
        : (p, rgb) =>
            values.share(p) > 1.02 ? rgb.splice(0, 3, ...OVER) : colour("share", 255 * values.share(p), rgb),
    ];
    const [, height, width] = image.set.shape;
    const objects = view.outline === "1" && image.set.objects;
    const outline = objects ? boundary(objects.subarray(image.place * height * width), width, height) : "";
    const top = state.classes(row);
    const captions = [
      verdict(top, 1, image),
      "",
      values.budgetRange(),
      verdict(top, 2, image),
      view.change === "signed" ? "darker or brighter" : "share of the budget",
    ];
    KINDS.forEach((kind, number) => {
      const { canvas, svg, caption } = parts.panels[number];
      paintCanvas(canvas, width, height, paints[number]);
      svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
      for (const path of svg.querySelectorAll("path")) path.setAttribute("d", outline);
      caption.replaceChildren(captions[number]);
      canvas.setAttribute("aria-label", `${kind} of test image ${image.id}, ${run.label}. ${caption.textContent}`);
    });
    const known = state === run.states[0] ? run.flags.filter((one) => one.values[row] !== "-") : [];
    parts.flags.textContent = known.map((one) => `${one.name} ${one.values[row] === "1" ? "✓" : "✗"}`).join(", ");
    parts.evaluated.hidden = !known.length;
    const recorded = top.filter((one) => one[1] !== null || one[2] !== null);
    parts.probabilities.replaceChildren(...recorded.map((one) => probabilityRow(one, image)));
  }

  function colour(table, level, rgb) {
    const place = 3 * Math.max(0, Math.min(255, Math.round(level)));
    for (let c = 0; c < 3; c++) rgb[c] = colours[table][place + c];
  }

  function point(pixel) {
    // marks a pixel [x, y] in all pictures, with its values; null: none
    const [, height, width] = current().set.shape;
    const inside = pixel && pixel[0] < width && pixel[1] < height;
    for (const run of runs) {
      const here = inside && run.values;
      run.parts.readout.textContent = here ? readout(run.values, pixel, current().set.shape) : "";
      for (const { svg } of run.parts.panels) {
        const cursor = svg.querySelector("rect");
        cursor.style.display = here ? "" : "none";
        if (here) ["x", "y"].forEach((name, axis) => cursor.setAttribute(name, pixel[axis]));
      }
    }
  }

  // -- building the page

  function label(image) {
    // a thumbnail's marks and name
    const found = shown()
      .map((run) => [run, result(run, image, "shown")])
      .filter(([, one]) => one);
    image.marks.replaceChildren(...found.map(([run, one]) => element("i", { class: `run-${run.colour} ${one}` })));
    const results = found.map(([run, one]) => `${run.label} ${RESULTS[one]}`);
    image.button.ariaLabel = [`Test image ${image.id}, ${image.name}`, ...results].join("; ");
    image.button.title = image.button.ariaLabel;
  }

  function buildThumbnail(image) {
    const canvas = element("canvas");
    paintCanvas(canvas, image.set.shape[2], image.set.shape[1], painterOf(image));
    image.marks = element("span", { class: "marks" });
    image.button = element("button", { type: "button", tabindex: "-1" }, canvas, image.marks);
    image.button.addEventListener("click", () => change({ image: image.id }));
  }

  function buildPanel(kind) {
    const panel = at("panel-template").content.firstElementChild.cloneNode(true);
    const frame = panel.querySelector(".frame");
    panel.querySelector("b").textContent = kind;
    const pixelOf = (event) => {
      const box = frame.getBoundingClientRect();
      const [, height, width] = current().set.shape;
      const along = (share, count) => Math.max(0, Math.min(count - 1, Math.floor(share * count)));
      return [
        along((event.clientX - box.left) / box.width, width),
        along((event.clientY - box.top) / box.height, height),
      ];
    };
    frame.addEventListener("pointermove", (event) => point(pixelOf(event)));
    frame.addEventListener("pointerleave", () => point(pinned));
    frame.addEventListener("click", (event) => {
      pinned = pinned ? null : pixelOf(event);
      point(pixelOf(event));
    });
    return {
      panel,
      canvas: panel.querySelector("canvas"),
      svg: panel.querySelector("svg"),
      caption: panel.querySelector("figcaption span"),
    };
  }

  function buildRun(run) {
    const root = at("run-template").content.firstElementChild.cloneNode(true);
    const names = ["body", "about", "missing", "readout", "flags", "evaluated"];
    run.parts = Object.fromEntries(names.map((name) => [name, root.querySelector(`.${name}`)]));
    Object.assign(run.parts, { root, probabilities: root.querySelector("tbody"), panels: KINDS.map(buildPanel) });
    run.parts.body.prepend(...run.parts.panels.map((one) => one.panel));
    run.parts.missing.textContent = run.states.length
      ? "This run has no pictures of this image."
      : "No pictures of this run yet.";
    root.querySelector(".tag").replaceWith(tag(run));
    at("rows").append(root);

    const box = element("input", { type: "checkbox", checked: "" });
    box.addEventListener("change", () => {
      view.hidden[box.checked ? "delete" : "add"](run.place);
      change({}, true);
    });
    const select = element("select", { "aria-label": `Images by the result of ${run.label}` }, ...conditions(run));
    select.disabled = !run.states.length;
    select.addEventListener("change", () => {
      view.where[run.place] = select.value;
      change({}, true);
    });
    Object.assign(run.parts, { box, select });
    at("runs").append(element("li", {}, element("label", {}, box, tag(run)), select));
  }

  // -- changes

  function change(changes, relist = false) {
    Object.assign(view, changes);
    if (relist) refresh();
    else draw();
    history.replaceState(null, "", `#${toHash()}`);
  }

  function refresh() {
    for (const run of runs) {
      run.parts.box.checked = !view.hidden.has(run.place);
      run.parts.select.value = view.where[run.place];
    }
    at("class").value = view.class;
    at("sort").value = view.sort;
    list();
    if (listed.length) draw();
  }

  function toHash() {
    const found = new URLSearchParams({ image: view.image });
    for (const name of Object.keys(DEFAULTS)) if (view[name] !== DEFAULTS[name]) found.set(name, view[name]);
    if (view.hidden.size) found.set("hide", [...view.hidden].sort().join("."));
    view.where.forEach((condition, place) => condition && found.set(`run${place}`, condition));
    return found.toString();
  }

  function fromHash() {
    // takes over what is valid; false if the address names no view
    if (!location.hash.includes("=")) return false;
    const found = new URLSearchParams(location.hash.slice(1));
    const valid = {
      image: images.map((image) => image.id),
      epoch: epochs.map(String),
      class: images.map((image) => image.name),
      sort: Object.keys(SORTS),
      change: ["signed", "share"],
      outline: ["0", "1"],
    };
    for (const [name, choices] of Object.entries(valid)) {
      view[name] = choices.includes(found.get(name)) ? found.get(name) : defaults[name];
    }
    const hidden = (found.get("hide") ?? "").split(".");
    view.hidden = new Set(runs.map((run) => run.place).filter((place) => hidden.includes(String(place))));
    view.where = runs.map((run) => {
      const wanted = found.get(`run${run.place}`);
      return [...run.parts.select.options].some((one) => one.value === wanted) ? wanted : "";
    });
    return true;
  }

  function move(by) {
    const place = Math.max(0, Math.min(listed.length - 1, listed.indexOf(current()) + by));
    change({ image: listed[place].id });
  }

  function moveEpoch(by) {
    const place = Math.max(0, Math.min(epochs.length, Number(at("epoch").value) + by));
    change({ epoch: place < epochs.length ? String(epochs[place]) : "" });
  }

  function onKey(event) {
    const box = at("root").getBoundingClientRect();
    const visible = listed.length && box.top < innerHeight && box.bottom > 0;
    if (!visible || event.altKey || event.ctrlKey || event.metaKey) return;
    if (event.target.closest("input[type=range], input[type=radio], select, summary, [role=region]")) return;
    const inGallery = at("gallery").contains(event.target);
    const perRow = listed.filter((image) => image.button.offsetTop === listed[0].button.offsetTop).length;
    const steps = { ArrowLeft: -1, ArrowRight: 1 };
    if (inGallery) Object.assign(steps, { ArrowUp: -perRow, ArrowDown: perRow, Home: -Infinity, End: Infinity });
    if (!(event.key in steps)) return;
    event.preventDefault();
    if (event.shiftKey) moveEpoch(Math.sign(steps[event.key]));
    else move(steps[event.key]);
    if (inGallery) current().button.focus({ preventScroll: true });
  }

  function reveal(button) {
    // scrolls the list of thumbnails, not the page
    const box = at("gallery");
    if (button.offsetTop < box.scrollTop) box.scrollTop = button.offsetTop;
    const below = button.offsetTop + button.offsetHeight - box.clientHeight;
    if (below > box.scrollTop) box.scrollTop = below;
  }

  images.forEach(buildThumbnail);
  runs.forEach(buildRun);
  const names = [...new Set(images.map((image) => image.name))];
  at("class").append(option("", "all classes"), ...names.map((name) => option(name, name)));
  at("sort").append(
    ...Object.entries(SORTS)
      .filter(([name]) => name !== "differ" || runs.length > 1)
      .map(([name, text]) => option(name, text)),
  );
  at("epochs").hidden = !epochs.length;
  at("epoch").max = epochs.length;
  at("class").addEventListener("change", (event) => change({ class: event.target.value }, true));
  at("sort").addEventListener("change", (event) => change({ sort: event.target.value, image: "" }, true));
  at("epoch").addEventListener("input", (event) => change({ epoch: String(epochs[event.target.value] ?? "") }));
  at("outline").addEventListener("change", (event) => change({ outline: event.target.checked ? "1" : "0" }));
  for (const mode of ["signed", "share"]) at(mode).addEventListener("change", () => change({ change: mode }));
  at("previous").addEventListener("click", () => move(-1));
  at("next").addEventListener("click", () => move(1));
  at("reset").addEventListener("click", () => {
    view.hidden.clear();
    change({ class: "", sort: "order", where: runs.map(() => "") }, true);
  });
  document.addEventListener("keydown", onKey);
  window.addEventListener("hashchange", () => fromHash() && refresh());
  const linked = fromHash();
  refresh();
  if (linked) at("root").scrollIntoView();
}

// -- elements

function element(name, { text, ...attributes } = {}, ...children) {
  const found = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) found.setAttribute(key, value);
  if (text !== undefined) found.textContent = text;
  found.append(...children);
  return found;
}

function option(value, text) {
  return element("option", { value, text });
}

function tag(run) {
  return element(
    "span",
    { class: `tag run-${run.colour}` },
    element("span", { class: "mark", "aria-hidden": "true", text: run.mark }),
    run.label,
  );
}

function conditions(run) {
  // the choices of a run's filter; "shown" is the attack of explain
  const attacks = [
    ["shown", "PGD", run.attack],
    ...run.flags.map((one) => [one.name, one.name, `${one.name} of evaluate`]),
  ];
  const group = (label, ...options) => element("optgroup", { label }, ...options);
  return [
    option("", "all images"),
    group("before any attack", option("natural:right", "right"), option("natural:wrong", "wrong")),
    ...attacks.map(([key, name, title]) =>
      group(
        title,
        option(`${key}:right`, `right under ${name}`),
        option(`${key}:wrong`, `wrong under ${name}`),
        option(`${key}:broken`, `broken by ${name} (right before)`),
      ),
    ),
  ];
}

function verdict(top, when, image) {
  const found = best(top, when);
  const right = found.class === image.label;
  const text = `${right ? "✓" : "✗"} ${image.set.classes[found.class]}`;
  return element("span", {}, element("span", { class: right ? "right" : "wrong", text }), ` ${percent(found[when])}`);
}

function probabilityRow(one, image) {
  const name = image.set.classes[one.class] + (one.class === image.label ? " (true)" : "");
  const cells = [one[1], one[2]].map((probability) => {
    const cell = element("td", { text: probability === null ? "not recorded" : percent(probability) });
    cell.style.setProperty("--share", `${100 * (probability ?? 0)}%`);
    return cell;
  });
  return element("tr", {}, element("th", { scope: "row", text: name }), ...cells);
}
