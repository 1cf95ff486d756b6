// Where nodes and streams are drawn: dagre places the nodes, ports and curves are placed here. Back edges are kept
// from dagre and drawn as arcs beside the nodes. A graph runs from left to right or from top to bottom.

import { Graph, layout as place } from "../../vendor/dagre.js";

const CHAR = { name: 7.9, small: 7.2, port: 7.9 }; // widths of a character, a little generous; tags are in capitals
const LABEL = 14; // characters of a port's label; the pointer shows all
const NODE = { least: 150, most: 300, height: 90, head: 64, row: 24 };
const GAP = { across: 36, down: 40, least: 56, most: 120 };
const LUG = { height: 26 };
const STUB = 16; // of a curve at a port

export const short = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);
const textWidth = (text, each) => text.length * each;
const plain = (calculator) => calculator.replace(/(.)Calculator$/, "$1");
const inputsOf = (node) => [...node.inputs.map((p) => ({ ...p, side: false })), ...node.side_inputs.map((p) => ({ ...p, side: true }))];
const outputsOf = (node) => [...node.outputs.map((p) => ({ ...p, side: false })), ...node.side_outputs.map((p) => ({ ...p, side: true }))];

function sizeOf(node, across) {
  const widths = (list) => list.map((p) => textWidth(short(p.port || "", LABEL), CHAR.port));
  const [ins, outs] = [widths(inputsOf(node)), widths(outputsOf(node))];
  const sum = (list) => list.reduce((all, w) => all + w + 12, 16);
  const ports = across ? [Math.max(0, ...ins) + Math.max(0, ...outs) + 32] : [sum(ins), sum(outs)];
  const wanted = Math.max(textWidth(node.name, CHAR.name) + 24, textWidth(plain(node.calculator), CHAR.small) + 24, ...ports);
  const width = Math.min(NODE.most, Math.max(NODE.least, wanted));
  return { width, height: across ? NODE.head + NODE.row * Math.max(ins.length, outs.length) : NODE.height, short: plain(node.calculator) };
}

/** Ports along an edge of a node, relative to its corner: [{ ...port, label, x, y, at }]; `at` is the label's place. */
function spread(list, node, across, out) {
  const room = Math.floor((node.width - 16) / Math.max(1, list.length) / CHAR.port);
  return list.map((port, i) => {
    if (across) {
      const y = NODE.head + NODE.row * (i + 0.5) - 4;
      const x = out ? node.width : 0;
      return { ...port, label: short(port.port || "", LABEL), x, y, at: { x: out ? x - 9 : 9, y: y + 4, anchor: out ? "end" : "start" } };
    }
    const x = ((i + 0.5) * node.width) / list.length;
    const y = out ? node.height : 0;
    return { ...port, label: short(port.port || "", Math.max(3, Math.min(LABEL, room))), x, y, at: { x, y: out ? y - 7 : 15, anchor: "middle" } };
  });
}

/** Lay a graph out: { across, width, height, nodes, lugs, edges }. Every stream and side packet is in `edges`. */
export function layout(graph, across) {
  const g = new Graph({ multigraph: true });
  const longest = Math.max(0, ...graph.nodes.flatMap((n) => n.outputs.map((o) => textWidth(o.stream, CHAR.small) + 20)));
  const ranksep = across ? Math.min(GAP.most, Math.max(GAP.least, longest)) : GAP.down;
  g.setGraph({ rankdir: across ? "LR" : "TB", nodesep: GAP.across, ranksep, marginx: 16, marginy: 16 });
  g.setDefaultEdgeLabel(() => ({}));
  const nodes = graph.nodes.map((node) => ({ ...node, id: `node:${node.name}`, ...sizeOf(node, across) }));
  const lugs = [
    ...graph.inputs.map((e) => ({ id: `in:${e.stream}`, kind: "input", text: e.tag || e.stream, stream: e.stream })),
    ...graph.outputs.map((e) => ({ id: `out:${e.stream}`, kind: "output", text: e.tag || e.stream, stream: e.stream })),
    ...graph.side_packets.map((name) => ({ id: `side:${name}`, kind: "side", text: name, packet: name })),
  ].map((lug) => ({ ...lug, label: short(lug.text, LABEL), width: textWidth(short(lug.text, LABEL), CHAR.port) + 20, height: LUG.height }));

  for (const box of [...nodes, ...lugs]) g.setNode(box.id, { width: box.width, height: box.height });

  const makers = new Map(); // stream -> { id, port }
  for (const lug of lugs) if (lug.kind === "input") makers.set(lug.stream, { id: lug.id, port: "" });
  for (const node of nodes) for (const o of node.outputs) makers.set(o.stream, { id: node.id, port: o.port, type: o.type });
  const sides = new Map(lugs.filter((l) => l.kind === "side").map((l) => [l.packet, { id: l.id, port: "" }]));
  for (const node of nodes) for (const o of node.side_outputs) sides.set(o.packet, { id: node.id, port: o.port });

  const edges = [];
  const link = (kind, name, from, to, port, more) => from && edges.push({ id: `${kind}:${name}:${to}:${port}`, kind, name, from, to: { id: to, port }, ...more });
  for (const node of nodes) {
    for (const i of node.inputs) link(i.back_edge ? "back" : "stream", i.stream, makers.get(i.stream), node.id, i.port, { type: i.type });
    for (const s of node.side_inputs) link("side", s.packet, sides.get(s.packet), node.id, s.port);
  }
  for (const lug of lugs) if (lug.kind === "output") link("stream", lug.stream, makers.get(lug.stream), lug.id, "");
  for (const edge of edges) {
    if (edge.kind !== "back") g.setEdge(edge.from.id, edge.to.id, { weight: edge.kind === "side" ? 1 : 6 }, edge.id);
  }
  place(g);

  for (const box of [...nodes, ...lugs]) {
    const { x, y } = g.node(box.id);
    Object.assign(box, { x: x - box.width / 2, y: y - box.height / 2 });
  }
  const swap = across ? (p) => ({ x: p.y, y: p.x }) : (p) => p; // paths are computed as from top to bottom
  const seen = nearestFirst(g, edges, swap);
  for (const node of nodes) {
    const order = (where) => (p, q) => (seen.get(`${node.id} ${where} ${p.port}`) ?? 1e9) - (seen.get(`${node.id} ${where} ${q.port}`) ?? 1e9);
    node.ins = spread(inputsOf(node).sort(order("in")), node, across, false);
    node.outs = spread(outputsOf(node).sort(order("out")), node, across, true);
  }
  const byId = new Map([...nodes, ...lugs].map((box) => [box.id, box]));
  let { width, height } = g.graph();
  let bends = 0;
  for (const edge of edges) {
    const [a, b] = [byId.get(edge.from.id), byId.get(edge.to.id)];
    const start = port(a, edge.from.port, "outs", edge.kind === "side", across);
    const end = port(b, edge.to.port, "ins", edge.kind === "side", across);
    if (edge.kind === "back") {
      const far = across ? Math.max(a.y + a.height, b.y + b.height) : Math.max(a.x + a.width, b.x + b.width);
      const out = far + 22 + 12 * bends;
      bends += 1;
      edge.path = arc(swap(start), swap(end), out, swap);
      edge.length = 2 * (out - Math.min(swap(start).x, swap(end).x)) + Math.abs(swap(end).y - swap(start).y);
      edge.label = across ? { x: (start.x + end.x) / 2 - textWidth(edge.name, CHAR.small) / 2, y: out - 5 } : { x: out + 5, y: (start.y + end.y) / 2 };
      if (across) [width, height] = [Math.max(width, a.x + a.width + 36), Math.max(height, out + 32)];
      else width = Math.max(width, out + 24 + textWidth(`${edge.name} · 99.9/s`, CHAR.small));
    } else {
      const points = [start, ...(g.edge(edge.from.id, edge.to.id, edge.id)?.points ?? []).slice(1, -1), end];
      edge.path = curve(points.map(swap), swap);
      edge.length = points.slice(1).reduce((sum, p, i) => sum + Math.hypot(p.x - points[i].x, p.y - points[i].y), 0);
      edge.label = across ? { x: start.x + 9, y: start.y - 5 } : middle(points);
    }
  }
  labelOnce(edges);
  return { across, width, height, nodes, lugs, edges };
}

/** From which side each port's curve comes, so that ports stand in an order in which few curves cross. */
function nearestFirst(g, edges, swap) {
  const seen = new Map();
  for (const edge of edges) {
    if (edge.kind === "back") continue;
    const points = g.edge(edge.from.id, edge.to.id, edge.id)?.points ?? [];
    const inner = points.length > 2;
    seen.set(`${edge.to.id} in ${edge.to.port}`, swap(inner ? points.at(-2) : g.node(edge.from.id)).x);
    seen.set(`${edge.from.id} out ${edge.from.port}`, swap(inner ? points[1] : g.node(edge.to.id)).x);
  }
  return seen;
}

function port(box, name, where, side, across) {
  const found = box[where]?.find((p) => p.port === name && p.side === side) ?? box[where]?.[0];
  if (found) return { x: box.x + found.x, y: box.y + found.y };
  const end = where === "outs";
  if (across) return { x: box.x + (end ? box.width : 0), y: box.y + box.height / 2 };
  return { x: box.x + box.width / 2, y: box.y + (end ? box.height : 0) };
}

const fix = (n) => Math.round(n * 10) / 10;
const text = (p) => `${fix(p.x)},${fix(p.y)}`;

/** A B-spline along the points dagre gives, leaving and entering ports straight. */
function curve(points, swap) {
  const [first, last] = [points[0], points.at(-1)];
  const way = [first, { x: first.x, y: first.y + STUB }, ...points.slice(1, -1), { x: last.x, y: last.y - STUB }, last];
  const at = (p) => text(swap(p));
  const mix = (a, b, t) => ({ x: a.x + (b.x - a.x) * t, y: a.y + (b.y - a.y) * t });
  let d = `M${at(first)}`;
  let knot = first;
  for (let i = 1; i < way.length; i += 1) {
    const [a, b] = [way[i - 1], way[i]];
    const next = way[i + 1];
    const end = next ? mix(mix(a, b, 2 / 3), mix(b, next, 1 / 3), 0.5) : b;
    d += `C${at(i === 1 ? mix(knot, b, 1 / 3) : mix(a, b, 1 / 3))} ${at(mix(a, b, 2 / 3))} ${at(end)}`;
    knot = end;
  }
  return d;
}

/** From the foot of one node around to the head of another, or of the same. */
function arc(start, end, out, swap) {
  const [low, high, r] = [start.y + 18, end.y - 18, 10];
  const at = (x, y) => text(swap({ x, y }));
  return `M${at(start.x, start.y)}L${at(start.x, low - r)}Q${at(start.x, low)} ${at(start.x + r, low)}L${at(out - r, low)}Q${at(out, low)} ${at(out, low - r)}L${at(out, high + r)}Q${at(out, high)} ${at(out - r, high)}L${at(end.x + r, high)}Q${at(end.x, high)} ${at(end.x, high + r)}L${at(end.x, end.y)}`;
}

function middle(points) {
  const at = (points.length - 1) / 2;
  const [a, b] = [points[Math.floor(at)], points[Math.ceil(at)]];
  return { x: (a.x + b.x) / 2 + 9, y: (a.y + b.y) / 2 + 4 };
}

/** A stream with several readers is named at the first of its curves only. */
function labelOnce(edges) {
  const named = new Set();
  for (const edge of edges) {
    edge.named = !named.has(`${edge.kind === "side"}${edge.name}`) && edge.kind !== "side";
    named.add(`${edge.kind === "side"}${edge.name}`);
  }
}
