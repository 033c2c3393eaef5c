// The encoder and decoder of the page on dates, as attn_lib has it: a text goes in, ISO 8601 comes out.
// A row is a Float32Array; the weights stand in dates_model.js, names as in the library.
"use strict";
const dateReader = ({letters, signs, start, end, heads, shapes, weights}) => {
  const floats = text => {                              // base64 to float16 to float32
    const bytes = atob(text), found = new Float32Array(bytes.length / 2);
    for (let i = 0; i < found.length; i++) {
      const low = bytes.charCodeAt(2 * i), high = bytes.charCodeAt(2 * i + 1);
      const exponent = high >> 2 & 31, fraction = ((high & 3) << 8 | low) / 1024;
      const size = exponent ? (1 + fraction) * 2 ** (exponent - 15) : fraction * 2 ** -14;
      found[i] = high & 128 ? -size : size;
    }
    return found;
  };
  const all = floats(weights), tensors = {};
  let used = 0;
  for (const [name, shape] of Object.entries(shapes)) {
    const length = shape.reduce((a, b) => a * b);
    tensors[name] = all.subarray(used, used += length);
  }
  const d = shapes["source.vectors.weight"][1], d_k = d / heads, LONGEST = shapes["source.positions.table"][0];
  const blocks = side => Array.from(Array(20).keys(), n => `${side}.blocks.${n}`).filter(name => `${name}.attention_norm.weight` in shapes);

  // ---------------------------------------------------------------- what a row goes through
  const add = (x, y) => x.map((value, i) => value + y[i]);
  function linear(name, x) {
    const matrix = tensors[`${name}.weight`], y = tensors[`${name}.bias`].slice();
    for (let o = 0, at = 0; o < y.length; o++) {
      let sum = 0;
      for (let i = 0; i < x.length; i++) sum += matrix[at++] * x[i];
      y[o] += sum;
    }
    return y;
  }
  function norm(name, x) {
    const gain = tensors[`${name}.weight`], bias = tensors[`${name}.bias`];
    const mean = x.reduce((a, b) => a + b) / d;
    const variance = x.reduce((sum, value) => sum + (value - mean) ** 2, 0) / d;
    return x.map((value, i) => (value - mean) / Math.sqrt(variance + 1e-5) * gain[i] + bias[i]);
  }
  function erf(x) {                                     // a series without cancellation
    if (Math.abs(x) > 4) return Math.sign(x);
    let sum = x, term = x;
    for (let n = 1; Math.abs(term) > 1e-9 * Math.abs(sum); n++) sum += term *= 2 * x * x / (2 * n + 1);
    return 2 / Math.sqrt(Math.PI) * Math.exp(-x * x) * sum;
  }
  const gelu = x => x.map(value => value / 2 * (1 + erf(value / Math.SQRT2)));
  const network = (name, x) => linear(`${name}.down`, gelu(linear(`${name}.up`, x)));
  const embed = (side, id, position) => {
    const vectors = tensors[`${side}.vectors.weight`], table = tensors[`${side}.positions.table`];
    return add(vectors.subarray(d * id, d * id + d), table.subarray(d * position, d * position + d));
  };

  // One query over these keys and values, in each head: the output row, and the weights.
  function attend(name, query, keys, values) {
    const mixed = new Float32Array(d), told = [];
    for (let h = 0; h < heads; h++) {
      const scores = new Float32Array(keys.length);
      keys.forEach((key, s) => {
        for (let i = h * d_k; i < h * d_k + d_k; i++) scores[s] += query[i] * key[i] / Math.sqrt(d_k);
      });
      const most = Math.max(...scores), powers = scores.map(score => Math.exp(score - most));
      const sum = powers.reduce((a, b) => a + b), row = powers.map(power => power / sum);
      values.forEach((value, s) => {
        for (let i = h * d_k; i < h * d_k + d_k; i++) mixed[i] += row[s] * value[i];
      });
      told.push(row);
    }
    return [linear(`${name}.out_proj`, mixed), told];
  }
  const projected = (name, what, rows) => rows.map(row => linear(`${name}.${what}_proj`, row));

  // ---------------------------------------------------------------- the two halves
  const unknown = text => [...new Set(text)].filter(letter => !letters.includes(letter));

  // The context: a row for each character; every character attends to every other.
  function encode(text) {
    let x = [...text].map((letter, position) => embed("source", letters.indexOf(letter) + 2, position));
    for (const name of blocks("encoder")) {
      const y = x.map(row => norm(`${name}.attention_norm`, row));
      const [q, k, v] = ["q", "k", "v"].map(what => projected(`${name}.attention`, what, y));
      x = x.map((row, t) => add(row, attend(`${name}.attention`, q[t], k, v)[0]));
      x = x.map(row => add(row, network(`${name}.feed_forward`, norm(`${name}.feed_forward_norm`, row))));
    }
    return x.map(row => norm("encoder.norm", row));
  }

  // A function from a token to the logits of the next and the weights of cross-attention, layer by layer.
  // Of the tokens before, their keys and values are kept; those of the context are computed once.
  function decoder(context) {
    const cache = blocks("decoder").map(name => ({
      name, keys: [], values: [],
      read: ["k", "v"].map(what => projected(`${name}.cross`, what, context)),
    }));
    let position = 0;
    return id => {
      const maps = [];
      let x = embed("target", id, position++);
      for (const {name, keys, values, read} of cache) {
        const y = norm(`${name}.attention_norm`, x);
        keys.push(linear(`${name}.attention.k_proj`, y));
        values.push(linear(`${name}.attention.v_proj`, y));
        x = add(x, attend(`${name}.attention`, linear(`${name}.attention.q_proj`, y), keys, values)[0]);
        const query = linear(`${name}.cross.q_proj`, norm(`${name}.cross_norm`, x));
        const [crossed, told] = attend(`${name}.cross`, query, ...read);
        x = add(x, crossed);
        x = add(x, network(`${name}.feed_forward`, norm(`${name}.feed_forward_norm`, x)));
        maps.push(told);
      }
      return [linear("output", norm("decoder.norm", x)), maps];
    };
  }

  // Greedy: the likeliest token each time, until END; of each sign written, its weights [layer][head][s].
  function write(context) {
    const next = decoder(context), weights = [];
    let answer = "", token = start;
    for (let t = 0; t < 11; t++) {
      const [logits, maps] = next(token);
      token = logits.indexOf(Math.max(...logits));
      if (token === end) break;
      if (token < signs.length) { answer += signs[token]; weights.push(maps); }
    }
    return {answer, weights};
  }
  return {LONGEST, tensors, unknown, encode, write};
};
