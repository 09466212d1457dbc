"use strict";
// Draws the rules of the library. The data comes placed and measured (substitutions/browse).

const SVG = { row: 26, title: 25, line: 12, margin: 6, between: 64 };
const PAGE = 36;
const COLOURS = 6;
const FIRST_INPUT = 4;
const KINDS = ["output", "computes", "moves", "stands"];

const escaped = (text) => text.replace(/[&<>"]/g, (c) => `&#${c.charCodeAt(0)};`);
const colour = (kind) => `in${(kind - FIRST_INPUT) % COLOURS}`;

/* Heights: a layer is as high as its highest box. */
function rows([, depth, boxes]) {
  const heights = new Array(depth).fill(0);
  for (const [kind, layer, , , text] of boxes) {
    heights[layer] = Math.max(heights[layer], boxHeight(kind, text));
  }
  const middles = [];
  let y = SVG.margin;
  for (const height of heights) {
    middles.push(y + height / 2);
    y += height + SVG.row;
  }
  return { middles, heights, height: y - SVG.row + SVG.margin };
}

function boxHeight(kind, text) {
  return kind === 0 ? (text ? 22 : 10) : SVG.title + SVG.line * (text.split("\n").length - 1);
}

function boxSvg([kind, layer, x, width, text], middles) {
  const y = middles[layer];
  const height = boxHeight(kind, text);
  if (kind === 0) {
    const label = text ? `<text x="${x}" y="${y + 11}">${escaped(text)}</text>` : "";
    return `<g class="output"><circle cx="${x}" cy="${text ? y - 6 : y}" r="4"/>${label}</g>`;
  }
  const lines = text.split("\n");
  const top = y - height / 2;
  const isInput = kind >= FIRST_INPUT;
  const round = isInput ? Math.min(14, height / 2) : 5;
  const words = lines.map((line, i) =>
    i === 0
      ? `<text class="title" x="${x}" y="${top + 17}">${escaped(line)}</text>`
      : `<text class="detail" x="${x}" y="${top + 17 + 1 + SVG.line * i}">${escaped(line)}</text>`);
  const style = isInput ? `input ${colour(kind)}` : KINDS[kind];
  return `<g class="${style}"><rect x="${x - width / 2}" y="${top}" width="${width}" height="${height}"
    rx="${round}"/>${words.join("")}</g>`;
}

function wireSvg([source, leaves, target, enters, ...bends], boxes, { middles, heights }) {
  const from = boxes[source];
  const to = boxes[target];
  const end = to[0] === 0 ? middles[to[1]] - (to[4] ? 10 : 4) : middles[to[1]] - boxHeight(to[0], to[4]) / 2;
  let x = from[2] + leaves;
  let y = middles[from[1]] + boxHeight(from[0], from[4]) / 2;
  let path = `M${x} ${y}`;
  const curve = (toX, toY) => {
    const half = (y + toY) / 2;
    path += x === toX ? `V${toY}` : `C${x} ${half} ${toX} ${half} ${toX} ${toY}`;
    [x, y] = [toX, toY];
  };
  bends.forEach((bend, i) => {
    const layer = from[1] + 1 + i;
    curve(bend, middles[layer] - heights[layer] / 2);
    curve(bend, middles[layer] + heights[layer] / 2);
  });
  curve(to[2] + enters, end);
  const style = from[0] >= FIRST_INPUT ? ` class="${colour(from[0])}"` : "";
  return `<path${style} d="${path}"/>`;
}

function sideSvg(side, x, height) {
  const placed = rows(side);
  const boxes = side[2];
  const inner = [
    ...side[3].map((wire) => wireSvg(wire, boxes, placed)),
    ...boxes.map((box) => boxSvg(box, placed.middles)),
  ];
  return `<g transform="translate(${x} ${(height - placed.height) / 2})">${inner.join("")}</g>`;
}

/* Both sides of a rule, with a sign between that says which ways it goes. */
function ruleSvg(rule) {
  const [left, right] = rule.sides;
  const height = Math.max(rows(left).height, rows(right).height);
  const width = left[0] + right[0] + SVG.between + 2 * SVG.margin;
  const middle = SVG.margin + left[0] + SVG.between / 2;
  return `<svg viewBox="0 0 ${width} ${height}" width="${width}" height="${height}" role="img"
    aria-label="${escaped(rule.statement)}">
    ${sideSvg(left, SVG.margin, height)}
    <text class="equal" x="${middle}" y="${height / 2 + 7}">${sign(rule)}</text>
    ${sideSvg(right, SVG.margin + left[0] + SVG.between, height)}</svg>`;
}

function sign(rule) {
  const [there, back] = rule.ways;
  return there.applicable ? (back.applicable ? "⇔" : "⇒") : back.applicable ? "⇐" : "=";
}

