export { Graph, layout } from "@dagrejs/dagre";
