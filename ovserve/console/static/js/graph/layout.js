// Where nodes and streams are drawn: dagre places the nodes, ports and curves are placed here. Back edges are kept
// from dagre and drawn as arcs beside the nodes.

import { Graph, layout as place } from "../../vendor/dagre.js";

const CHAR = { name: 7.6, small: 6.6 }; // widths of a character, a little generous
const NODE = { least: 190, most: 300, height: 98 };
const PORT_GAP = 12;
const LUG = { height: 26 };
const STUB = 16; // of a curve at a port

const short = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);
const textWidth = (text, each) => text.length * each;

function sizeOf(node) {
  const ports = (list) => list.reduce((sum, p) => sum + textWidth(short(p.port || "·", 24), CHAR.small) + PORT_GAP, 16);
  const wanted = Math.max(
    textWidth(node.name, CHAR.name) + 28,
    textWidth(node.calculator, CHAR.small) + 28,
    ports([...node.inputs, ...node.side_inputs.map(() => ({ port: "" }))]),
    ports(node.outputs),
  );
  return { width: Math.min(NODE.most, Math.max(NODE.least, wanted)), height: NODE.height };
}

/** Ports along an edge, spaced by the width of their labels: [{ port, x }] relative to the node's left. */
function spread(list, width) {
  const room = Math.floor((width - 16) / Math.max(1, list.length) / CHAR.small - 1);
  return list.map((port, i) => ({
    ...port,
    label: short(port.port || "", Math.max(3, room)),
    x: ((i + 0.5) * width) / list.length,
  }));
}

/** Lay a graph out: { width, height, nodes, lugs, edges }. Every stream and side packet is in `edges`. */
export function layout(graph) {
  const g = new Graph({ multigraph: true });
  g.setGraph({ rankdir: "TB", nodesep: 44, ranksep: 54, marginx: 24, marginy: 24 });
  g.setDefaultEdgeLabel(() => ({}));
  const nodes = graph.nodes.map((node) => ({ ...node, id: `node:${node.name}`, ...sizeOf(node) }));
  const lugs = [
    ...graph.inputs.map((e) => ({ id: `in:${e.stream}`, kind: "input", text: e.tag || e.stream, stream: e.stream })),
    ...graph.outputs.map((e) => ({ id: `out:${e.stream}`, kind: "output", text: e.tag || e.stream, stream: e.stream })),
    ...graph.side_packets.map((name) => ({ id: `side:${name}`, kind: "side", text: name, packet: name })),
  ].map((lug) => ({ ...lug, width: textWidth(lug.text, CHAR.small) + 28, height: LUG.height }));
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
  const seen = nearestFirst(g, edges);
  for (const node of nodes) {
    const order = (where) => (a, b) => (seen.get(`${node.id} ${where} ${a.port}`) ?? 1e9) - (seen.get(`${node.id} ${where} ${b.port}`) ?? 1e9);
    node.top = spread([...node.inputs.map((p) => ({ ...p, side: false })), ...node.side_inputs.map((p) => ({ ...p, side: true }))].sort(order("top")), node.width);
    node.bottom = spread([...node.outputs.map((p) => ({ ...p, side: false })), ...node.side_outputs.map((p) => ({ ...p, side: true }))].sort(order("bottom")), node.width);
  }
  const byId = new Map([...nodes, ...lugs].map((box) => [box.id, box]));
  let right = g.graph().width;
  let bends = 0;
  for (const edge of edges) {
    const start = port(byId.get(edge.from.id), edge.from.port, "bottom", edge.kind === "side");
    const end = port(byId.get(edge.to.id), edge.to.port, "top", edge.kind === "side");
    if (edge.kind === "back") {
      const [a, b] = [byId.get(edge.from.id), byId.get(edge.to.id)];
      const out = Math.max(a.x + a.width, b.x + b.width) + 22 + 12 * bends;
      bends += 1;
      edge.path = arc(start, end, out);
      edge.length = 2 * (out - Math.min(start.x, end.x)) + Math.abs(end.y - start.y);
      edge.label = { x: out + 5, y: (start.y + end.y) / 2 };
      right = Math.max(right, out + 24 + textWidth(`${edge.name} · 99.9/s`, CHAR.small));
    } else {
      const points = [start, ...(g.edge(edge.from.id, edge.to.id, edge.id)?.points ?? []).slice(1, -1), end];
      edge.path = curve(points);
      edge.length = points.slice(1).reduce((sum, p, i) => sum + Math.hypot(p.x - points[i].x, p.y - points[i].y), 0);
      edge.label = middle(points);
    }
  }
  labelOnce(edges);
  return { width: right, height: g.graph().height, nodes, lugs, edges };
}

/** From which x each port's curve comes, so that ports stand in an order in which few curves cross. */
function nearestFirst(g, edges) {
  const seen = new Map();
  for (const edge of edges) {
    if (edge.kind === "back") continue;
    const points = g.edge(edge.from.id, edge.to.id, edge.id)?.points ?? [];
    const inner = points.length > 2;
    seen.set(`${edge.to.id} top ${edge.to.port}`, inner ? points.at(-2).x : g.node(edge.from.id).x);
    seen.set(`${edge.from.id} bottom ${edge.from.port}`, inner ? points[1].x : g.node(edge.to.id).x);
  }
  return seen;
}

function port(box, name, where, side) {
  const y = where === "top" ? box.y : box.y + box.height;
  if (!box[where]) return { x: box.x + box.width / 2, y };
  const found = box[where].find((p) => p.port === name && p.side === side) ?? box[where][0];
  return { x: box.x + (found?.x ?? box.width / 2), y };
}

const fix = (n) => Math.round(n * 10) / 10;

/** A B-spline along the points dagre gives, leaving and entering ports straight. */
function curve(points) {
  const [first, last] = [points[0], points.at(-1)];
  const way = [first, { x: first.x, y: first.y + STUB }, ...points.slice(1, -1), { x: last.x, y: last.y - STUB }, last];
  const at = (p) => `${fix(p.x)},${fix(p.y)}`;
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
function arc(start, end, out) {
  const [low, high, r] = [start.y + 18, end.y - 18, 10];
  return `M${fix(start.x)},${fix(start.y)}V${fix(low - r)}Q${fix(start.x)},${fix(low)} ${fix(start.x + r)},${fix(low)}H${fix(out - r)}Q${fix(out)},${fix(low)} ${fix(out)},${fix(low - r)}V${fix(high + r)}Q${fix(out)},${fix(high)} ${fix(out - r)},${fix(high)}H${fix(end.x + r)}Q${fix(end.x)},${fix(high)} ${fix(end.x)},${fix(high + r)}V${fix(end.y)}`;
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
