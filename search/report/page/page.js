// The page about a plan: graphs, the machine and the timeline. The data comes placed and measured.

const HUES = [212, 168, 275, 32, 340, 95, 190, 14, 250, 60, 305, 130];
const LANE = { height: 13, gap: 2, row: 40, label: 13 };
const ZOOM = 1.3;
const FOLDED = 12;

const byId = (id) => document.getElementById(id);
const hue = (number) => HUES[number % HUES.length];

/* A graph, which is as wide as it is placed; each box says which one it is. */
function showGraph(id, graph) {
  const height = rows(graph.picture).height;
  const width = graph.picture[0] + 2 * SVG.margin;
  const pane = byId(id);
  pane.innerHTML = `<svg viewBox="0 0 ${width} ${height}" width="${width}" height="${height}" role="img"
    aria-label="${id}">${sideSvg(graph.picture, SVG.margin, height)}</svg>`;
  const boxes = [...pane.querySelectorAll("svg > g > g")];
  boxes.forEach((box, number) => {
    const [text, classes] = graph.boxes[number];
    if (!text) return;
    box.classList.add("box");
    box.dataset.text = text.toLowerCase();
    box.setAttribute("tabindex", "0");
    const choose = () => {
      chosen(box, classes);
      byId("told").textContent = text;
    };
    box.addEventListener("click", choose);
    box.addEventListener("keydown", (event) => { if (event.key === "Enter") choose(); });
  });
  const fits = pane.clientWidth / width;
  if (fits < 1) scale(pane, Math.max(fits, 0.35));
}

/* Show an operator as chosen, and the devices that it runs on. */
function chosen(element, classes) {
  for (const old of document.querySelectorAll(".chosen")) old.classList.remove("chosen");
  element.classList.add("chosen");
  byId("nodes").classList.toggle("choosing", classes.length > 0);
  for (const device of document.querySelectorAll(".device")) {
    device.classList.toggle("chosen", classes.includes(Number(device.dataset.of)));
  }
}

function scale(pane, by) {
  const svg = pane.querySelector("svg");
  if (!svg) return;
  svg.setAttribute("width", svg.getAttribute("width") * by);
  svg.setAttribute("height", svg.getAttribute("height") * by);
}

function zoomButtons() {
  for (const place of document.querySelectorAll(".zoom")) {
    const pane = byId(place.dataset.of);
    for (const [label, by, name] of [["−", 1 / ZOOM, "Smaller"], ["+", ZOOM, "Larger"]]) {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = label;
      button.title = name;
      button.addEventListener("click", () => {
        if (place.dataset.of === "events") stretch(by);
        else scale(pane, by);
      });
      place.append(button, " ");
    }
    pane.addEventListener("wheel", (event) => {
      if (!event.ctrlKey) return;
      event.preventDefault();
      const by = event.deltaY < 0 ? 1.1 : 1 / 1.1;
      if (place.dataset.of === "events") stretch(by);
      else scale(pane, by);
    }, { passive: false });
  }
}

/* The devices, by node; nodes in which devices do the same are shown once. */
function showMachine(machine) {
  const nodes = new Map();
  for (let first = 0; first < machine.numbers.length; first += machine.per_node) {
    const own = machine.numbers.slice(first, first + machine.per_node);
    const key = own.join(" ");
    if (!nodes.has(key)) nodes.set(key, { own, firsts: [] });
    nodes.get(key).firsts.push(first);
  }
  const folds = machine.numbers.length > machine.per_node * FOLDED;
  const place = byId("nodes");
  for (const { own, firsts } of nodes.values()) {
    const times = folds ? 1 : firsts.length;
    for (const first of firsts.slice(0, times)) {
      const node = document.createElement("div");
      node.className = "node";
      const more = firsts.length - times;
      node.textContent = `node ${first / machine.per_node}` + (more ? ` and ${more} like it` : "");
      const devices = document.createElement("div");
      own.forEach((number, i) => {
        const device = document.createElement("span");
        device.className = "device";
        device.style.setProperty("--hue", hue(number));
        device.dataset.of = number;
        device.textContent = first + i;
        device.title = machine.labels[number];
        devices.append(device);
      });
      node.append(devices);
      place.append(node);
    }
  }
  machine.labels.slice(0, 24).forEach((label, number) => {
    const swatch = document.createElement("span");
    swatch.className = "swatch";
    swatch.style.setProperty("--hue", hue(number));
    swatch.textContent = label;
    byId("classes").append(swatch);
  });
}

const tidy = (us) => (us >= 1e6 ? `${(us / 1e6).toPrecision(3)} s`
  : us >= 1e3 ? `${(us / 1e3).toPrecision(3)} ms` : `${us.toPrecision(3)} us`);

let timelineGiven = null;

function showTimeline(given) {
  timelineGiven = given;
  const pane = byId("events");
  drawTimeline(Math.max(pane.clientWidth, 600));
  const tell = (event) => {
    const at = event.target.dataset && event.target.dataset.at;
    if (!at) return;
    const [row, i] = at.split(" ").map(Number);
    const [, phase, begin, length, name] = given.rows[row].bars[i];
    byId("event").textContent = `device ${given.rows[row].device}, ${given.phases[phase]}: `
      + `${given.names[name]}, ${tidy(length)} from ${tidy(begin)} on`;
  };
  pane.addEventListener("pointermove", tell);
  pane.addEventListener("click", tell);
}

function drawTimeline(width) {
  const given = timelineGiven;
  const unit = width / (given.step || 1);
  const parts = [];
  given.rows.forEach(({ device, bars }, row) => {
    const top = row * LANE.row + LANE.label;
    const at = (stream) => top + stream * (LANE.height + LANE.gap);
    parts.push(`<text x="2" y="${top - 2}">device ${Number(device)}</text>`);
    for (const stream of [0, 1]) {
      parts.push(`<rect class="lane" x="0" y="${at(stream)}" width="${width}" height="${LANE.height - 1}"/>`);
    }
    bars.forEach(([stream, phase, begin, length], i) => {
      parts.push(`<rect class="${escaped(given.phases[phase])}" x="${(begin * unit).toFixed(2)}" y="${at(stream)}"
        width="${Math.max(length * unit - 0.15, 0.25).toFixed(2)}" height="${LANE.height - 1}" data-at="${row} ${i}"/>`);
    });
  });
  const height = given.rows.length * LANE.row + 4;
  byId("events").innerHTML = `<svg viewBox="0 0 ${width} ${height}" width="${width}" height="${height}"
    role="img" aria-label="timeline">${parts.join("")}</svg>`;
}

/* The timeline is stretched in time alone. */
function stretch(by) {
  const pane = byId("events");
  const width = Number(pane.querySelector("svg").getAttribute("width"));
  const middle = (pane.scrollLeft + pane.clientWidth / 2) / width;
  const wider = Math.min(Math.max(width * by, 200), 60000);
  drawTimeline(wider);
  pane.scrollLeft = middle * wider - pane.clientWidth / 2;
}

function showRules(rules) {
  for (const place of document.querySelectorAll("[data-rule]")) {
    place.innerHTML = ruleSvg(rules[Number(place.dataset.rule)]);
  }
}

/* Rows and boxes whose text has all the words. */
function search(text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const fits = (own) => words.every((word) => own.includes(word));
  let found = 0;
  for (const row of document.querySelectorAll("#operators tbody tr")) {
    row.hidden = !fits(row.textContent.toLowerCase());
    row.style.display = row.hidden ? "none" : "";
    found += !row.hidden;
  }
  let first = null;
  for (const svg of document.querySelectorAll("#before svg, #after svg")) {
    svg.classList.toggle("searching", words.length > 0);
    for (const box of svg.querySelectorAll("g.box")) {
      const is = words.length > 0 && fits(box.dataset.text);
      box.classList.toggle("found", is);
      if (is) first = first || box;
      found += words.length > 0 && is;
    }
  }
  byId("count").textContent = words.length ? `${found} found` : "";
  return first;
}

function start() {
  const data = JSON.parse(byId("data").textContent);
  showMachine(data.machine);
  showGraph("before", data.before);
  showGraph("after", data.after);
  showTimeline(data.timeline);
  showRules(data.rules);
  zoomButtons();
  const names = [...document.querySelectorAll("#operators th")].map((th) => th.textContent);
  for (const row of document.querySelectorAll("#operators tbody tr")) {
    [...row.children].forEach((cell, i) => { cell.dataset.name = names[i]; });
    const classes = row.dataset.classes.split(" ").filter(Boolean).map(Number);
    row.addEventListener("click", () => chosen(row, classes));
    row.addEventListener("keydown", (event) => { if (event.key === "Enter") chosen(row, classes); });
  }
  const field = byId("search");
  field.addEventListener("input", () => search(field.value));
  field.addEventListener("keydown", (event) => {
    const first = event.key === "Enter" && search(field.value);
    if (first) first.scrollIntoView({ block: "center", inline: "center" });
  });
  addEventListener("keydown", (event) => {
    if (event.key === "/" && document.activeElement !== field) {
      event.preventDefault();
      field.select();
    }
  });
  byId("theme").addEventListener("click", () => {
    const root = document.documentElement;
    const dark = (root.style.colorScheme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
    root.style.colorScheme = dark ? "light" : "dark";
  });
}

start();
