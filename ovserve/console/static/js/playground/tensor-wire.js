// Tensors as KServe's binary extension sends them: the JSON, and behind it the bytes of each, little-endian.

import { ApiError } from "../api.js";

export const TYPES = ["FP32", "FP64", "FP16", "INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64", "BOOL", "BYTES"];
const ARRAYS = {
  FP32: Float32Array, FP64: Float64Array, INT8: Int8Array, INT16: Int16Array, INT32: Int32Array, INT64: BigInt64Array,
  UINT8: Uint8Array, UINT16: Uint16Array, UINT32: Uint32Array, UINT64: BigUint64Array, BOOL: Uint8Array,
};
const MOST = 64e6; // elements that a form makes
const PICTURE = /image|picture|photo|frame|pixel/i;
const SMALL = 64; // elements that an example writes out

export const elements = (shape) => shape.reduce((n, side) => n * side, 1);
const fixed = (port) => (port.shape.length ? port.shape.map((n) => (n < 0 ? (port.shape.length === 4 ? 64 : 1) : n)) : [1]).map((n, i) => (i === 0 && port.shape[0] < 0 ? 1 : n));
const typeOf = (port) => (ARRAYS[port.datatype] || port.datatype === "FP16" || port.datatype === "BYTES" ? port.datatype : "FP32");

/** The state of a form for one input. `fill`: zeros, random, values, text, image. */
export function filled(port) {
  const open = port.datatype === "INVALID" || !port.shape.length;
  const picture = open && PICTURE.test(port.name); // a graph declares no types, so its name is all there is
  const datatype = picture ? "UINT8" : typeOf(port);
  return { name: port.name, datatype, open, shape: fixed(port).join(", "), fill: picture ? "image" : datatype === "BYTES" ? "text" : "random", text: "", file: null, bgr: true };
}

/** The input of a JSON body: zeros where they are few. */
export function example(port) {
  const [shape, datatype] = [fixed(port), typeOf(port)];
  const count = elements(shape);
  const zero = datatype === "BYTES" ? "text" : datatype === "BOOL" ? false : 0;
  return { name: port.name, datatype, shape, data: count <= SMALL ? Array.from({ length: count }, () => zero) : ["… the elements, flat or nested …"] };
}

export function parseShape(text) {
  const shape = text.split(/[\s,x[\]]+/).filter(Boolean).map(Number);
  if (shape.some((n) => !Number.isInteger(n) || n < 0)) throw new ApiError(`The shape ${text} is not a list of whole numbers.`);
  if (elements(shape) > MOST) throw new ApiError(`The shape ${text} has more than ${MOST / 1e6} million elements.`);
  return shape;
}

function half(value) {
  const [f, u] = [new Float32Array([value]), new Uint32Array(1)];
  u.set(new Uint32Array(f.buffer));
  const sign = (u[0] >>> 16) & 0x8000;
  const exponent = ((u[0] >>> 23) & 0xff) - 112;
  if (exponent >= 31) return sign | 0x7c00 | (((u[0] >>> 23) & 0xff) === 255 && u[0] & 0x7fffff ? 0x200 : 0);
  if (exponent <= 0) return exponent < -10 ? sign : sign | (((u[0] & 0x7fffff) | 0x800000) >> (14 - exponent));
  return sign | (exponent << 10) | ((u[0] >>> 13) & 0x3ff);
}

function fromHalf(bits) {
  const [sign, exponent, rest] = [bits & 0x8000 ? -1 : 1, (bits >> 10) & 31, bits & 1023];
  if (exponent === 31) return rest ? NaN : sign * Infinity;
  return sign * (exponent ? 2 ** (exponent - 15) * (1 + rest / 1024) : 2 ** -14 * (rest / 1024));
}

function numbers(datatype, values) {
  if (datatype === "FP16") return Uint16Array.from(values, half);
  const Type = ARRAYS[datatype];
  return /64$/.test(datatype) && datatype !== "FP64" ? Type.from(values, (v) => BigInt(Math.trunc(v))) : Type.from(values);
}

function texts(list) {
  const parts = list.flatMap((one) => {
    const data = typeof one === "string" ? new TextEncoder().encode(one) : one;
    const head = new Uint8Array(4);
    new DataView(head.buffer).setUint32(0, data.byteLength, true);
    return [head, data];
  });
  return parts;
}

function content(input) {
  const { datatype, fill } = input;
  if (fill === "image" && input.pixels) return { shape: [input.pixels.height, input.pixels.width, 3], parts: [input.pixels.data] };
  if (fill === "image") {
    if (!input.bytes) throw new ApiError(`${input.name}: choose an image first.`);
    return { shape: [1], parts: texts([input.bytes]), datatype: "BYTES" };
  }
  if (datatype === "BYTES") {
    const list = input.text.split("\n");
    return { shape: [list.length], parts: texts(list) };
  }
  const shape = parseShape(input.shape);
  const count = elements(shape);
  if (fill === "values") {
    const found = (input.text.match(/[^\s,[\]]+/g) ?? []).map(Number);
    if (found.some(Number.isNaN)) throw new ApiError(`${input.name}: not all of its values are numbers.`);
    if (found.length !== count) throw new ApiError(`${input.name}: the shape [${shape}] takes ${count} values, ${found.length} were given.`);
    return { shape, parts: [numbers(datatype, found)] };
  }
  const whole = !/^FP/.test(datatype);
  const most = datatype === "BOOL" ? 2 : 10;
  const made = fill === "zeros" ? new Float32Array(count) : Float32Array.from({ length: count }, () => (whole ? Math.floor(Math.random() * most) : Math.random()));
  return { shape, parts: [numbers(datatype, made)] };
}

/** The body of an inference: { body, headers }. Throws ApiError for what cannot be sent. */
export function encode(inputs) {
  const parts = [];
  const rows = inputs.map((input) => {
    const made = content(input);
    parts.push(...made.parts);
    const size = made.parts.reduce((sum, part) => sum + part.byteLength, 0);
    return { name: input.name, datatype: made.datatype ?? input.datatype, shape: made.shape, parameters: { binary_data_size: size } };
  });
  const head = new TextEncoder().encode(JSON.stringify({ inputs: rows, parameters: { binary_data_output: true } }));
  return { body: new Blob([head, ...parts]), headers: { "Content-Type": "application/octet-stream", "Inference-Header-Content-Length": String(head.byteLength) } };
}

function read(datatype, buffer) {
  if (datatype === "BYTES") {
    const [out, view] = [[], new DataView(buffer)];
    for (let at = 0; at + 4 <= buffer.byteLength; ) {
      const size = view.getUint32(at, true);
      out.push(new TextDecoder().decode(new Uint8Array(buffer, at + 4, size)));
      at += 4 + size;
    }
    return out;
  }
  if (datatype === "FP16") return Float32Array.from(new Uint16Array(buffer), fromHalf);
  const found = new ARRAYS[datatype](buffer);
  return /64$/.test(datatype) && datatype !== "FP64" ? Float64Array.from(found, Number) : found;
}

/** The answer, with `data` of each output as a typed array, or an array of texts. */
export function decode(buffer, length) {
  const end = length ? Number(length) : buffer.byteLength;
  const value = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 0, end)));
  let at = end;
  for (const output of value.outputs ?? []) {
    const size = output.parameters?.binary_data_size;
    if (size === undefined) continue;
    output.data = read(output.datatype, buffer.slice(at, at + size));
    at += size;
  }
  return value;
}
