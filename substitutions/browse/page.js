/* The statement with operators and inputs in the colours of the picture. */
function statementHtml(rule) {
  const parts = rule.statement.match(/\w+\(|\[[^\]]*\]|\w+|./g);
  return parts.map((part) => {
    if (part.startsWith("[")) return `<span class="axes">${escaped(part)}</span>`;
    if (part.endsWith("(")) return `<span class="${operatorStyle(part.slice(0, -1))}">${part.slice(0, -1)}</span>(`;
    const input = rule.inputs.indexOf(part);
    return input < 0 ? escaped(part) : `<span class="in${input % COLOURS}">${part}</span>`;
  }).join("");
}

function operatorStyle(name) {
  if (library.parallel.includes(name)) return "moves";
  return library.operators.includes(name) ? "computes" : "stands";
}

const list = (words) => words.map((word) => `<code>${escaped(word)}</code>`).join(", ");

function factsHtml(rule) {
  const facts = [
    `<a href="#rule=${rule.name}" title="Show this rule alone">${rule.name}</a>`,
    `<span class="tag">${rule.family}</span>`,
  ];
  if (rule.runs.length) facts.push(`<span>free axes ${list(rule.runs)}</span>`);
  if (rule.derived) facts.push(`<span>follows from others in ${rule.derived}</span>`);
  const [count, digest] = rule.proof;
  facts.push(`<span title="Side conditions discharged by Z3, and their hash">proof ${count} · <code>${digest}</code></span>`);
  if (rule.requires.length) facts.push(`<div><span class="if">only where</span> ${list(rule.requires)}</div>`);
  if (rule.conditions.length) facts.push(`<div><span class="if">if</span> ${list(rule.conditions)}</div>`);
  rule.ways.forEach((way, i) => {
    const text = wayHtml(way);
    if (text) facts.push(`<div>${i ? "⇐" : "⇒"} ${text}</div>`);
  });
  return facts.join("");
}

const CREATED = {
  rearranged: "of weights it is a re-parametrisation: the same elements in another order",
  padded: "of weights it is a re-parametrisation while its constants are held",
  constant: "known beforehand",
  computed: "to be computed in each step, even if it reads nothing but weights",
};

/* What to know of one way to apply a rule; nothing where there is nothing special. */
function wayHtml(way) {
  const parts = [];
  if (!way.applicable) {
    parts.push(way.unbound.length ? `cannot be applied: ${list(way.unbound)} would be unknown` : "cannot be applied");
  }
  if (way.free.length) parts.push(`free to choose ${list(way.free)}`);
  for (const [value, kind] of way.creates) {
    const short = value.length > 70 ? `${value.slice(0, 67)}...` : value;
    parts.push(`<span title="${CREATED[kind]}">makes <code>${escaped(short)}</code> (${kind})</span>`);
  }
  return parts.join("; ");
}

/* Data: lists in the file, named here. */
function named(row) {
  const [name, family, statement, inputs, operators, runs, requires, conditions, derived, proof, ways, sides] = row;
  const way = ([applicable, unbound, free, creates]) => ({ applicable: !!applicable, unbound, free, creates });
  const words = `${statement} ${name}`.toLowerCase();
  return {
    name, family: library.families[family], statement, inputs,
    operators: operators.map((i) => library.operators[i]),
    runs, requires, conditions, derived, proof, ways: ways.map(way), sides, words,
  };
}

let library = { families: [], operators: [], parallel: [] };
let rules = [];
let shown = [];
let drawn = 0;

const FILTERS = { q: "", family: "", operator: "", parallel: "", direction: "", further: "", rule: "" };
const DIRECTIONS = {
  "both ways": (there, back) => there && back,
  "left to right": (there) => there,
  "right to left": (_, back) => back,
  "one way only": (there, back) => there !== back,
};
const FURTHER = {
  "with conditions": (rule) => rule.conditions.length + rule.requires.length > 0,
  "without conditions": (rule) => rule.conditions.length + rule.requires.length === 0,
  "for any number of axes": (rule) => rule.runs.length > 0,
  "for any element-wise operator": (rule) => rule.operators.some((name) => name.startsWith("pointwise")),
  "with re-parametrised weights": (rule) =>
    rule.ways.some((way) => way.creates.some(([, kind]) => kind === "rearranged" || kind === "padded")),
};

function fits(rule, filters) {
  const ways = rule.ways.map((way) => way.applicable);
  return (!filters.rule || rule.name === filters.rule)
    && (!filters.family || rule.family === filters.family)
    && (!filters.operator || rule.operators.includes(filters.operator))
    && (!filters.parallel || rule.operators.includes(filters.parallel))
    && (!filters.direction || DIRECTIONS[filters.direction](...ways))
    && (!filters.further || FURTHER[filters.further](rule))
    && filters.q.toLowerCase().split(/\s+/).every((word) => rule.words.includes(word));
}

function card(rule) {
  const article = document.createElement("article");
  const wide = rule.sides[0][0] + rule.sides[1][0] > 700 || rule.statement.length > 420;
  article.className = wide ? "wide" : "";
  article.innerHTML = `<p class="statement">${statementHtml(rule)}</p>
    <div class="picture">${ruleSvg(rule)}</div><div class="facts">${factsHtml(rule)}</div>`;
  return article;
}

function more() {
  const place = document.getElementById("rules");
  for (const rule of shown.slice(drawn, drawn + PAGE)) place.append(card(rule));
  drawn = Math.min(shown.length, drawn + PAGE);
}

function refresh() {
  shown = rules.filter((rule) => fits(rule, FILTERS));
  drawn = 0;
  const place = document.getElementById("rules");
  place.replaceChildren();
  if (!shown.length) place.innerHTML = `<p class="none">No rule is like that.</p>`;
  more();
  const all = shown.length === rules.length;
  document.getElementById("count").textContent =
    all ? `${rules.length} rules` : `${shown.length} of ${rules.length} rules`;
  for (const button of document.querySelectorAll("#families button")) {
    button.setAttribute("aria-pressed", String(button.value === FILTERS.family));
  }
}

/* The filters are the page's address, so that a view can be sent to others. */
function readAddress() {
  const given = new URLSearchParams(location.hash.slice(1));
  for (const key of Object.keys(FILTERS)) FILTERS[key] = given.get(key) ?? "";
  if (!(FILTERS.direction in DIRECTIONS)) FILTERS.direction = "";
  if (!(FILTERS.further in FURTHER)) FILTERS.further = "";
  document.getElementById("search").value = FILTERS.q;
  for (const id of ["operator", "parallel", "direction", "further"]) {
    document.getElementById(id).value = FILTERS[id];
  }
  refresh();
}

function set(key, value) {
  FILTERS[key] = value;
  FILTERS.rule = "";
  const given = Object.entries(FILTERS).filter(([, text]) => text);
  history.replaceState(null, "", given.length ? `#${new URLSearchParams(given)}` : location.pathname + location.search);
  refresh();
}

function fill(id, first, options) {
  const select = document.getElementById(id);
  select.append(new Option(first, ""), ...options.map((name) => new Option(name, name)));
  select.addEventListener("change", () => set(id, select.value));
}

function start() {
  library = JSON.parse(document.getElementById("data").textContent);
  rules = library.rules.map(named);
  const families = document.getElementById("families");
  for (const name of ["", ...library.families]) {
    const count = rules.filter((rule) => !name || rule.family === name).length;
    if (!count) continue;
    const button = document.createElement("button");
    button.type = "button";
    button.value = name;
    button.innerHTML = `${name || "all"}<small>${count}</small>`;
    button.addEventListener("click", () => set("family", name));
    families.append(button);
  }
  fill("operator", "operator", library.operators.filter((name) => !library.parallel.includes(name)));
  fill("parallel", "parallel operator", library.parallel);
  fill("direction", "direction", Object.keys(DIRECTIONS));
  fill("further", "with or without", Object.keys(FURTHER));
  const search = document.getElementById("search");
  search.addEventListener("input", () => set("q", search.value));
  addEventListener("keydown", (event) => {
    if (event.key === "/" && document.activeElement !== search) {
      event.preventDefault();
      search.select();
    }
  });
  document.getElementById("theme").addEventListener("click", () => {
    const root = document.documentElement;
    const dark = (root.style.colorScheme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
    root.style.colorScheme = dark ? "light" : "dark";
  });
  addEventListener("scroll", () => {
    if (innerHeight + scrollY > document.body.scrollHeight - 1500) more();
  }, { passive: true });
  addEventListener("hashchange", readAddress);
  readAddress();
}

start();
