// Figures that move. Each takes the place of the still picture of its name, in the built page only;
// its numbers stand in live_data.js. Every number shown is text: in a table, or in a sentence.
"use strict";
(() => {
  const make = (name, attributes = {}, ...children) => {
    const drawn = ["svg", "path", "line", "rect", "circle", "polygon", "text"].includes(name);
    const made = drawn
      ? document.createElementNS("http://www.w3.org/2000/svg", name)
      : document.createElement(name);
    Object.entries(attributes).forEach(([key, value]) => made.setAttribute(key, value));
    made.append(...children);
    return made;
  };
  const number = (value, digits) => value.toFixed(digits).replace(/^-(0\.?0*)$/, "$1").replace("-", "−");
  const vector = (point, digits) => `(${point.map(value => number(value, digits)).join(", ")})`;
  const token = name => make("i", {}, name);
  const listed = names => names.flatMap((name, i) => [i ? (i < names.length - 1 ? ", " : " and ") : "", token(name)]);
  // Radio buttons in a row; `pick` is told which one is chosen.
  const choices = (legend, names, pick) => {
    const group = `choice-${Math.random().toString(36).slice(2)}`;
    const inputs = names.map((_, i) => make("input", {type: "radio", name: group, value: i}));
    inputs.forEach((input, i) => input.addEventListener("change", () => pick(i)));
    const labels = names.map((name, i) => make("label", {}, inputs[i], make("span", {}, name)));
    return {inputs, set: make("fieldset", {}, make("legend", {}, legend), ...labels)};
  };
  const slider = (name, range, move) => {
    const input = make("input", {type: "range", min: 0, ...range}), output = make("output");
    input.addEventListener("input", () => move(Number(input.value)));
    return {input, output, label: make("label", {class: "slide"}, `${name} `, input, output)};
  };
  const columns = (corner, names) => make("thead", {}, make("tr", {}, corner, ...names.map(name => make("th", {scope: "col"}, name))));

  const share = w => number(w, 2).replace(/^0/, "");
  const largest = line => line.indexOf(Math.max(...line));

  // A heat map whose rows can be chosen: pointing, tapping, or with the arrow keys; each is told.
  function map({tokens, weights, row, where = ""}, tell = () => {}) {
    const say = make("p", {class: "say", "aria-live": "polite"});
    const names = tokens.map(name => make("button", {type: "button"}, name));
    const rows = weights.map((line, t) => make("tr", {},
      make("th", {scope: "row"}, names[t]),
      ...line.map(w => make("td", {style: `--w:${w}`, class: w > 0.93 ? "high" : ""}, make("span", {}, share(w))))));
    const choose = t => {
      rows.forEach((line, s) => line.classList.toggle("chosen", s === t));
      names.forEach((button, s) => {
        button.setAttribute("aria-pressed", s === t);
        button.tabIndex = s === t ? 0 : -1;
      });
      const best = largest(weights[t]);
      say.replaceChildren(...(tell(t) || [where, token(tokens[t]), ` puts ${number(weights[t][best], 3)} of its attention on `, token(tokens[best]), "."]));
    };
    rows.forEach((line, t) => {
      // not pointerenter: a mouse at rest, under which the page scrolls, chooses nothing
      line.addEventListener("pointermove", event => event.pointerType === "mouse" && choose(t));
      line.addEventListener("click", () => choose(t));
      names[t].addEventListener("focus", () => choose(t));
      names[t].addEventListener("keydown", event => {
        const next = t + ({ArrowUp: -1, ArrowDown: 1}[event.key] || 0);
        if (next !== t && names[next]) { event.preventDefault(); names[next].focus(); }
      });
    });
    choose(row);
    return [
      make("table", {class: "map"},
        make("thead", {}, make("tr", {}, make("td", {}, "query ↓ key →"),
          ...tokens.map(name => make("th", {scope: "col"}, make("span", {}, name))))),
        make("tbody", {}, ...rows)),
      say,
      make("p", {class: "hint"}, "Choose a row: point at it, tap it, or use the arrow keys."),
    ];
  }

  // Heads that can be switched: small maps of all, with where the chosen query attends most, and a large one.
  function heads({tokens, weights, head, row}) {
    const size = tokens.length, group = `heads-${Math.random().toString(36).slice(2)}`, large = make("div");
    const marks = weights.map(() => make("rect", {class: "mark", width: size, height: 1}));
    const most = weights.map(() => make("span", {class: "most"}));
    let asking = row;
    const tell = t => weights.forEach((table, h) => {
      const best = largest(table[asking = t]);
      marks[h].setAttribute("y", t);
      most[h].replaceChildren(token(tokens[best]), ` ${share(table[t][best])}`);
    });
    const show = h => large.replaceChildren(...map({tokens, weights: weights[h], row: asking, where: `In head ${h}, `}, tell));
    const choices = weights.map((table, h) => {
      const radio = make("input", {type: "radio", name: group, value: h});
      const cells = table.flatMap((line, t) => line.map((w, s) =>
        make("rect", {class: "cell", style: `--w:${w}`, x: s, y: t, width: 1, height: 1})));
      radio.checked = h === head;
      radio.addEventListener("change", () => show(h));
      return make("label", {}, radio, make("div", {class: "small"},
        make("svg", {viewBox: `0 0 ${size} ${size}`, "aria-hidden": true}, ...cells, marks[h]),
        make("span", {}, `head ${h}`), most[h]));
    });
    show(head);
    return [make("fieldset", {class: "heads"}, make("legend", {}, "head"), ...choices), large];
  }

  // One head: the query can be dragged, and its weights and output follow.
  function head({tokens, q, k, v, row, axes}) {
    const SIZE = 240;
    const plane = (label, points, below, above) => {
      const all = points.flat(), low = Math.min(0, ...all) - below;
      const unit = SIZE / (Math.max(...all) + above - low);
      const at = ([x, y]) => [(x - low) * unit, SIZE - (y - low) * unit];
      const [x, y] = at([0, 0]);
      const svg = make("svg", {viewBox: `0 0 ${SIZE} ${SIZE}`, role: "group", "aria-label": label},
        make("path", {class: "axis", d: `M0 ${y}H${SIZE}M${x} 0V${SIZE}`}),
        make("text", {class: "name", x: SIZE - 6, y: 18, "text-anchor": "end"}, label));
      const from = (px, py) => [px / unit + low, (SIZE - py) / unit + low];
      return {svg, at, from, low, high: low + SIZE / unit};
    };
    const dots = (where, points, role) => points.map((point, i) => {
      const [cx, cy] = where.at(point);
      const dot = make("circle", {class: `dot ${role}`, cx, cy});
      const same = points.findIndex(other => String(other) === String(point));
      const others = tokens.filter((_, j) => String(points[j]) === String(point));
      where.svg.append(dot);
      if (same !== i) return dot;
      const crowded = points.some(([px, py]) => py === point[1] && px > point[0] && where.at([px, py])[0] < cx + 60);
      const side = crowded ? {x: cx - 9, "text-anchor": "end"} : {x: cx + 9};
      where.svg.append(make("text", {...side, y: cy + 17}, others.join(", ")));
      return dot;
    });
    const arrow = (where, role) => {
      const [x1, y1] = where.at([0, 0]);
      const line = make("line", {class: `arrow ${role}`, x1, y1});
      const tip = make("circle", {class: `tip ${role}`, r: 7});
      where.svg.append(line, tip);
      return point => {
        const [x, y] = where.at(point);
        line.setAttribute("x2", x); line.setAttribute("y2", y);
        tip.setAttribute("cx", x); tip.setAttribute("cy", y);
        return [x, y];
      };
    };
    const left = plane("keys and the query", [...k, ...q], 1.5, 0.5);
    const [originX, originY] = left.at([0, 0]);
    left.svg.append(
      make("text", {class: "name", x: SIZE - 6, y: originY - 8, "text-anchor": "end"}, `${axes[0]} →`),
      make("text", {class: "name", x: originX + 6, y: 40}, `${axes[1]} ↑`));
    const right = plane("values and the output", v, 0.4, 0.9);
    right.svg.append(make("polygon", {class: "hull", points: hull(v).map(point => right.at(point).join()).join(" ")}));
    [[left, k, "key"], [right, v, "value"]].forEach(([where, points, role]) => points.forEach(point => {
      const [x1, y1] = where.at([0, 0]), [x2, y2] = where.at(point);
      where.svg.append(make("line", {class: `ray ${role}`, x1, y1, x2, y2}));
    }));
    const keys = dots(left, k, "key"), values = dots(right, v, "value");
    const toQuery = arrow(left, "query"), toOutput = arrow(right, "output");
    const handle = make("circle", {class: "handle", r: 22, tabindex: 0, role: "slider", "aria-label": "query, moved by the arrow keys"});
    left.svg.append(handle);

    const cells = digits => tokens.map(() => make("td", {class: digits}));
    const scored = cells("score"), weighed = cells("weight");
    const cards = (points, role) => points.map(point => make("td", {}, make("span", {class: `vector ${role}`}, vector(point, 0))));
    const {inputs: asks, set} = choices("query of", tokens, i => ask(i));
    const slider = make("input", {type: "range", min: -2, max: 3, step: 0.25, value: 0});
    const shown = make("output"), say = make("p", {class: "say", "aria-live": "polite"});
    const again = make("button", {type: "button"}, "start again");
    let asking = row, query = q[row], quiet;

    function draw() {
      const temperature = 2 ** slider.value;
      const scores = k.map(key => key.reduce((sum, a, j) => sum + a * query[j], 0) / Math.sqrt(key.length));
      const top = Math.max(...scores);
      const powers = scores.map(score => Math.exp((score - top) / temperature));
      const total = powers.reduce((a, b) => a + b), weights = powers.map(power => power / total);
      const out = v[0].map((_, j) => weights.reduce((sum, w, i) => sum + w * v[i][j], 0));
      const [x, y] = toQuery(query);
      handle.setAttribute("cx", x); handle.setAttribute("cy", y);
      toOutput(out);
      weights.forEach((w, i) => {
        scored[i].textContent = number(scores[i], 2);
        weighed[i].textContent = number(w, 3);
        weighed[i].style.setProperty("--w", w);
        [keys[i], values[i]].forEach(dot => dot.setAttribute("r", 3 + 14 * Math.sqrt(w)));
      });
      shown.textContent = temperature.toFixed(2);
      slider.setAttribute("aria-valuetext", shown.textContent);
      handle.setAttribute("aria-valuenow", query[0]);
      handle.setAttribute("aria-valuetext", vector(query, 1));
      const best = weights.indexOf(Math.max(...weights)), flat = weights[best] - Math.min(...weights) < 5e-4;
      clearTimeout(quiet);                             // what is read aloud waits until it rests
      say.setAttribute("aria-busy", "true");
      quiet = setTimeout(() => say.removeAttribute("aria-busy"), 600);
      const whose = query === q[asking] ? [`With the query ${vector(query, 1)}, `, token(tokens[asking])] : [`The query ${vector(query, 1)}`];
      say.replaceChildren(...whose,
        ...(flat ? [" puts the same weight on every token"] : [` puts ${number(weights[best], 3)} on `, token(tokens[best])]),
        ` and gets ${vector(out, 3)}.`);
    }
    const move = point => {                            // inside the frame, in steps of a tenth
      set.classList.add("left");                       // the query is no token's any more
      query = point.map(a => Math.round(10 * Math.min(left.high - 0.2, Math.max(left.low + 0.2, a))) / 10);
      draw();
    };
    const pointed = event => {
      const frame = left.svg.getBoundingClientRect(), scale = SIZE / frame.width;
      move(left.from((event.clientX - frame.left) * scale, (event.clientY - frame.top) * scale));
    };
    const ask = i => { set.classList.remove("left"); asking = i; query = q[i]; asks[i].checked = true; draw(); };
    // the page must not move along with the finger; touch-action does nothing on a part of an SVG
    handle.addEventListener("touchstart", event => event.preventDefault(), {passive: false});
    handle.addEventListener("pointerdown", event => handle.setPointerCapture(event.pointerId));
    handle.addEventListener("pointermove", event => handle.hasPointerCapture(event.pointerId) && pointed(event));
    handle.addEventListener("keydown", event => {
      const step = {ArrowLeft: [-0.1, 0], ArrowRight: [0.1, 0], ArrowUp: [0, 0.1], ArrowDown: [0, -0.1]}[event.key];
      if (step) { event.preventDefault(); move(query.map((a, j) => a + step[j] * (event.shiftKey ? 5 : 1))); }
    });
    let pressed;                                       // a click goes there, a drag from elsewhere nowhere
    left.svg.addEventListener("pointerdown", event => { pressed = event; });
    left.svg.addEventListener("click", event => event.target !== handle
      && Math.hypot(event.clientX - pressed.clientX, event.clientY - pressed.clientY) < 6 && pointed(event));
    slider.addEventListener("input", draw);
    again.addEventListener("click", () => { slider.value = 0; ask(row); });
    ["min", "max"].forEach((end, i) => handle.setAttribute(`aria-value${end}`, [left.low, left.high][i]));
    ask(row);
    return [
      set,
      make("div", {class: "planes"}, left.svg, right.svg),
      make("table", {},
        columns(make("td"), tokens),
        make("tbody", {},
          make("tr", {}, make("th", {scope: "row"}, "key"), ...cards(k, "key")),
          make("tr", {}, make("th", {scope: "row"}, "score"), ...scored),
          make("tr", {}, make("th", {scope: "row"}, "weight"), ...weighed),
          make("tr", {}, make("th", {scope: "row"}, "value"), ...cards(v, "value")))),
      say,
      make("label", {class: "slide"}, "temperature ", slider, shown),
      make("p", {class: "hint"}, "Drag the end of the query, or use the arrow keys. ", again),
    ];
  }

  // A mask and the weights that come of it, in whichever way it is read.
  function mask({tokens, q, k, kinds}) {
    const scores = q.map(query => k.map(key => key.reduce((sum, a, j) => sum + a * query[j], 0) / Math.sqrt(key.length)));
    const names = Object.keys(kinds), readings = ["may attend", "blocked"];
    const say = make("p", {class: "say", "aria-live": "polite"}), shown = make("output");
    const length = make("input", {type: "range", min: 0, max: tokens.length, value: tokens.length});
    let kind = 0, reading = 0;
    const types = choices("mask", names, i => { kind = i; draw(); });
    const readers = choices("True is read as", readings, i => { reading = i; draw(); });
    types.inputs[kind].checked = readers.inputs[reading].checked = true;
    const square = (label, fill) => {
      const cells = tokens.map(() => tokens.map(() => make("td")));
      const rows = tokens.map((name, t) => make("tr", {}, make("th", {scope: "row"}, name), ...cells[t]));
      const upright = tokens.map(name => make("span", {}, name));
      return {cells, table: make("table", {class: `map ${fill}`}, columns(make("td", {}, label), upright), make("tbody", {}, ...rows))};
    };
    const given = square("the mask", "given"), weighed = square("the weights", "weighed");
    function draw() {
      const empty = [];
      let pairs = 0;
      tokens.forEach((name, t) => {
        const said = tokens.map((_, s) => kinds[names[kind]][t][s] && s < length.value);
        const open = said.map(is => is !== (reading === 1));
        const powers = scores[t].map((score, s) => open[s] ? Math.exp(score - Math.max(...scores[t])) : 0);
        const total = powers.reduce((a, b) => a + b), count = open.filter(Boolean).length;
        pairs += count;
        if (!count) empty.push(name);
        powers.forEach((power, s) => {
          const w = count ? power / total : 0, cell = weighed.cells[t][s];
          given.cells[t][s].textContent = said[s] ? "T" : "F";
          given.cells[t][s].className = said[s] ? "true" : "";
          cell.textContent = open[s] ? number(w, 2).replace(/^0/, "") : "";
          cell.style.setProperty("--w", w);
          cell.className = !open[s] ? "closed" : w > 0.93 ? "high" : "";
        });
      });
      shown.textContent = `${length.value} of ${tokens.length}`;
      length.setAttribute("aria-valuetext", shown.textContent);
      say.replaceChildren(`${pairs} of ${tokens.length ** 2} pairs are open. `, ...(empty.length
        ? ["Nothing is open to ", ...listed(empty), ": zeros."] : ["Every row sums to 1."]));
    }
    length.addEventListener("input", draw);
    draw();
    return [
      types.set, readers.set,
      make("label", {class: "slide"}, "real tokens ", length, shown),
      make("div", {class: "pair"}, given.table, weighed.table),
      say,
    ];
  }

  // What comes next: a temperature and a cut, over the likeliest tokens, and three texts drawn so.
  function sample({tokens, shares, kept, temperatures, cuts, texts}) {
    const cells = [...tokens, "all others"].map(() => make("td", {class: "share"}));
    const rows = [...tokens, "all others"].map((name, i) => make("tr", {}, make("th", {scope: "row"}, name), cells[i]));
    const lines = texts[0][0].map(() => make("li", {}));
    const say = make("p", {class: "say", "aria-live": "polite"}), again = make("button", {type: "button"}, "start again");
    const picks = choices("cut", cuts, i => { cut = i; draw(); });
    const heat = slider("temperature", {max: temperatures.length - 1}, () => draw());
    let cut = 0;
    function draw() {
      const t = heat.input.value, now = shares[t][cut], open = kept[t][cut], tail = open > tokens.length;
      const rest = Math.max(0, 1 - now.reduce((a, b) => a + b));
      [...now, rest].forEach((w, i) => {
        cells[i].textContent = i < open ? number(w, 3) : "cut off";
        cells[i].style.setProperty("--w", i < open ? w : 0);
        rows[i].classList.toggle("cut", i >= open);
      });
      lines.forEach((line, n) => { line.textContent = `… the warm${texts[t][cut][n]}`; });
      picks.inputs[cut].checked = true;
      heat.output.textContent = number(temperatures[t], 2);
      heat.input.setAttribute("aria-valuetext", heat.output.textContent);
      say.replaceChildren(`${Math.min(open, tokens.length)} of these ${tokens.length} tokens can come next`,
        tail ? `, and others, with ${number(rest, 3)} together.` : ", and no other.");
    }
    again.addEventListener("click", () => {
      heat.input.value = temperatures.indexOf(1);
      cut = 0;
      draw();
    });
    heat.input.value = temperatures.indexOf(1);
    draw();
    return [
      picks.set, heat.label,
      make("table", {class: "next"}, columns(make("th", {scope: "col"}, "next token"), ["share"]), make("tbody", {}, ...rows)),
      say,
      make("p", {}, "Three texts, drawn with the same luck at every setting:"),
      make("ol", {class: "texts"}, ...lines),
      make("p", {class: "hint"}, "Choose a cut, and move the slider, or focus it and use the arrow keys. ", again),
    ];
  }

  // A logit lens: the tokens that a model would name if it stopped after so many of its blocks.
  function lens({prompts, guesses, chances, answers, own, block}) {
    const last = own[0].length - 1, again = make("button", {type: "button"}, "start again");
    const rows = chances[0][0].map(() => [make("th", {scope: "row"}), make("td", {class: "share"})]);
    const say = make("p", {class: "say", "aria-live": "polite"});
    const picks = choices("prompt", prompts, i => { which = i; draw(); });
    const depth = slider("blocks run", {max: last, step: 1}, k => { now = k; draw(); });
    let which = 0, now = block;
    function draw() {
      const names = guesses[which][now], shares = chances[which][now];
      rows.forEach(([name, cell], i) => {
        name.textContent = names[i];
        cell.textContent = number(shares[i], 3);
        cell.style.setProperty("--w", shares[i]);
      });
      picks.inputs[which].checked = true;
      depth.input.value = now;
      depth.output.textContent = `${now} of ${last}`;
      depth.input.setAttribute("aria-valuetext", depth.output.textContent);
      const how = now < last ? `If SmolLM2 stopped after ${now} of ${last} blocks, it would say ` : `After all ${last} blocks SmolLM2 says `;
      say.replaceChildren(how, token(names[0]), `, with ${number(shares[0], 3)}. `,
        ...(now < last ? ["In the end it says ", token(answers[which]), `, which has ${number(own[which][now], 3)} here.`] : []));
    }
    again.addEventListener("click", () => { which = 0; now = block; draw(); });
    draw();
    return [
      picks.set, depth.label,
      make("table", {class: "next"}, columns(make("th", {scope: "col"}, "next token"), ["probability"]),
        make("tbody", {}, ...rows.map(cells => make("tr", {}, ...cells)))),
      say,
      make("p", {class: "hint"}, "Move the slider, or focus it and use the arrow keys. ", again),
    ];
  }

  // Attention where a token or its position is taken away, or both: the mean of the heads, layer by layer.
  function crossed({names, texts, tokens, corners, without, maps, layer}) {
    const last = maps[0][0].length - 1, again = make("button", {type: "button"}, "start again");
    const svgs = corners.map(() => make("svg", {role: "img"})), most = corners.map(() => make("span", {class: "most"}));
    const say = make("p", {class: "say", "aria-live": "polite"});
    const picks = choices("sentence", names, i => { which = i; draw(); });
    const depth = slider("layer", {max: last, step: 1}, l => { now = l; draw(); });
    let which = 0, now = layer;
    function draw() {
      const shares = maps[which].map(layers => layers[now].reduce((sum, line) => sum + line[0], 0) / layers[now].length);
      corners.forEach((corner, n) => {
        const weights = maps[which][n][now], first = tokens[which][without[n]];
        svgs[n].setAttribute("viewBox", `0 0 ${weights.length} ${weights.length}`);
        svgs[n].setAttribute("aria-label", `${corner}: a map of ${weights.length} tokens`);
        svgs[n].replaceChildren(...weights.flatMap((line, t) => line.map((w, s) =>
          make("rect", {class: "cell", style: `--w:${w}`, x: s, y: t, width: 1, height: 1}))));
        most[n].replaceChildren(token(first), ` ${number(shares[n], 2)}`);
      });
      picks.inputs[which].checked = true;
      depth.input.value = now;
      depth.output.textContent = now;
      depth.input.setAttribute("aria-valuetext", `layer ${now}`);
      say.replaceChildren(`Layer ${now}, `, token(texts[which]), " The first token gets ",
        ...corners.flatMap((corner, n) => [n ? (n < corners.length - 1 ? ", " : " and ") : "", `${number(shares[n], 3)} (${corner})`]), ".");
    }
    again.addEventListener("click", () => { which = 0; now = layer; draw(); });
    draw();
    return [
      picks.set, depth.label,
      make("div", {class: "heads crossed"}, ...corners.map((corner, n) => make("div", {class: "small"}, svgs[n], make("span", {}, corner), most[n]))),
      say,
      make("p", {class: "hint"}, "Move the slider, or focus it and use the arrow keys. ", again),
    ];
  }

  // Random heads that read one sentence: the weights of one of them, and the gradients of all.
  function row({tokens, products, widths, gradient, width: d_0, head: h_0}) {
    const names = ["1", "1/√dₖ", "1/dₖ"], count = products[0].length;
    const cells = tokens.map(() => make("td", {class: "weight"}));
    const bars = products[0].map((_, h) => make("rect", {class: "bar", x: 10 * h + 1, width: 8}));
    const tallest = make("text", {class: "name", x: 10 * count - 2, y: 10, "text-anchor": "end"});
    const svg = make("svg", {class: "losses", viewBox: `0 0 ${10 * count} 108`, role: "img"},
      make("text", {class: "name", x: 2, y: 10}, "gradient of each head"), tallest, ...bars,
      make("line", {class: "axis", x1: 0, x2: 10 * count, y1: 16, y2: 16, "stroke-dasharray": "2 4"}),
      make("line", {class: "axis", x1: 0, x2: 10 * count, y1: 106, y2: 106}));
    const say = make("p", {class: "say", "aria-live": "polite"}), again = make("button", {type: "button"}, "start again");
    const width = slider("width", {max: widths.length - 1, value: widths.indexOf(d_0)}, () => draw());
    const head = slider("head", {max: count - 1, value: h_0}, () => draw());
    const scales = choices("scale", names, i => { kind = i; draw(); });
    let kind = 0;
    function draw() {
      const [i, h] = [Number(width.input.value), Number(head.input.value)], d = widths[i];
      const scale = [1, d ** -0.5, 1 / d][kind], scores = products[i][h].map(a => scale * a);
      const powers = scores.map(score => Math.exp(score - Math.max(...scores)));
      const total = powers.reduce((a, b) => a + b), weights = powers.map(power => power / total);
      const sizes = gradient[i].map(of => of[kind]), sorted = [...sizes].sort((a, b) => a - b);
      const top = Math.max(...gradient[i].flat()), mean = sizes.reduce((a, b) => a + b) / count;
      cells.forEach((cell, s) => {
        cell.textContent = number(weights[s], 2);
        cell.style.setProperty("--w", weights[s]);
      });
      tallest.textContent = `dotted line: ${number(top, 3)}`;
      bars.forEach((bar, n) => {
        const height = 90 * sizes[n] / top;
        bar.setAttribute("height", height.toFixed(2));
        bar.setAttribute("y", (106 - height).toFixed(2));
        bar.classList.toggle("chosen", n === h);
      });
      [[width, d], [head, `${h + 1} of ${count}`]].forEach(([knob, value]) => {
        knob.output.textContent = value;
        knob.input.setAttribute("aria-valuetext", value);
      });
      scales.inputs[kind].checked = true;
      svg.setAttribute("aria-label", `the gradients of ${count} heads, from ${number(sorted[0], 3)} to ${number(sorted[count - 1], 3)}`);
      say.replaceChildren(`Head ${h + 1} puts ${number(Math.max(...weights), 2)} on one word, and its gradient is ${number(sizes[h], 3)}. `,
        `Of all ${count} heads, the median is ${number(sorted[count / 2 - 1], 3)}, the mean ${number(mean, 3)} and the largest ${number(sorted[count - 1], 3)}.`);
    }
    bars.forEach((bar, n) => bar.addEventListener("click", () => { head.input.value = n; draw(); }));
    again.addEventListener("click", () => {
      width.input.value = widths.indexOf(d_0);
      head.input.value = h_0;
      kind = 0;
      draw();
    });
    draw();
    return [
      scales.set, width.label, head.label,
      make("table", {"aria-label": "weights of cat"}, columns(make("td"), tokens),
        make("tbody", {}, make("tr", {}, make("th", {scope: "row"}, "weight"), ...cells))),
      svg, say,
      make("p", {class: "hint"}, "Move the sliders, or focus one and use the arrow keys. ", again),
    ];
  }

  // Rotary positions: pairs of a query and of a key, rotated by where they stand; both can move together.
  // Shaded: the angles from the key to the query at distances that training covered, up to `trained`.
  function dial({q, k, speeds, i, j, last, trained}) {
    const SIZE = 240, R = 100, C = SIZE / 2;
    const start = {query: i, key: j}, at = {...start}, pairs = {query: q, key: k}, roles = ["query", "key"];
    const planes = speeds.map(speed => {
      const svg = make("svg", {viewBox: `0 0 ${SIZE} ${SIZE}`, role: "img", "aria-label": `the pair of speed ${speed}`},
        make("path", {class: "covered"}),
        make("circle", {class: "axis", cx: C, cy: C, r: R}),
        make("text", {class: "name", x: 6, y: 18}, `speed ${speed}`));
      const hands = roles.map(role => [
        make("line", {class: `arrow ${role}`, x1: C, y1: C}),
        make("circle", {class: `tip ${role}`, r: role === "query" ? 9 : 5}),   // the key lies on top
      ]);
      // what is dragged lies on top; sliders do the same for the keyboard
      const handles = roles.map(role => make("circle", {class: `handle ${role}-tip`, r: 22, "aria-hidden": true}));
      svg.append(...hands.flat(), ...handles);
      handles.forEach((handle, h) => {
        handle.addEventListener("touchstart", event => event.preventDefault(), {passive: false});
        handle.addEventListener("pointerdown", event => handle.setPointerCapture(event.pointerId));
        handle.addEventListener("pointermove", event => handle.hasPointerCapture(event.pointerId) && follow(event, svg, h, speed));
      });
      return {svg, hands, handles, covered: svg.firstChild};
    });
    // To the position, not farther than half a turn away, whose hand points nearest to the pointer.
    function follow(event, svg, h, speed) {
      const frame = svg.getBoundingClientRect(), role = roles[h], m = speeds.indexOf(speed);
      const y = frame.top + frame.height / 2 - event.clientY, x = event.clientX - frame.left - frame.width / 2;
      const [a, b] = pairs[role][m], here = Math.atan2(b, a) + speed * at[role];
      const away = Math.atan2(y, x) - here, near = away - 2 * Math.PI * Math.round(away / (2 * Math.PI));
      at[role] = Math.min(last, Math.max(0, at[role] + Math.round(near / speed)));
      draw();
    }
    const row = (name, cells) => make("tr", {}, make("th", {scope: "row"}, name), ...cells);
    const cells = [...roles, "product", "angle"].map(name => speeds.map(() => make("td", {class: name})));
    const say = make("p", {class: "say", "aria-live": "polite"});
    const knob = (name, move) => slider(name, {max: last, step: 1}, p => { move(p); draw(); });
    const knobs = [...roles.map(role => knob(`${role} at`, p => { at[role] = p; })), knob("shift both", p => {
      const by = p - Math.min(at.query, at.key);
      roles.forEach(role => { at[role] += by; });
    })];
    const again = make("button", {type: "button"}, "start again");
    function draw() {
      const apart = at.query - at.key, low = Math.min(at.query, at.key);
      const products = speeds.map((speed, m) => {
        // a sector that begins at the key's hand; above a whole turn, the circle
        const [a, b] = pairs.key[m], from = Math.atan2(b, a) + speed * at.key, reach = speed * trained;
        const corner = angle => `${(C + R * Math.cos(angle)).toFixed(2)} ${(C - R * Math.sin(angle)).toFixed(2)}`;
        const whole = reach >= 2 * Math.PI, half = whole ? Math.PI : reach / 2, arc = `A${R} ${R} 0 ${half > Math.PI ? 1 : 0} 0`;
        planes[m].covered.setAttribute("d", `M${C} ${C}L${corner(from)}${arc} ${corner(from + half)}${arc} ${corner(from + 2 * half)}Z`);
        const seen = whole || (apart >= 0 && apart <= trained);
        cells[3][m].textContent = `${number(speed * apart, 1)}${seen ? "" : ", new"}`;
        cells[3][m].classList.toggle("new", !seen);
        const turned = roles.map((role, h) => {
          const [x, y] = pairs[role][m], cos = Math.cos(speed * at[role]), sin = Math.sin(speed * at[role]);
          const point = [x * cos - y * sin, x * sin + y * cos], [line, tip] = planes[m].hands[h];
          const [px, py] = [C + R * point[0], C - R * point[1]];
          line.setAttribute("x2", px); line.setAttribute("y2", py);
          tip.setAttribute("cx", px); tip.setAttribute("cy", py);
          planes[m].handles[h].setAttribute("cx", px); planes[m].handles[h].setAttribute("cy", py);
          cells[h][m].textContent = vector(point, 3);
          return point;
        });
        const product = turned[0][0] * turned[1][0] + turned[0][1] * turned[1][1];
        cells[2][m].textContent = number(product, 3);
        return product;
      });
      knobs[2].input.max = last - Math.abs(apart);
      [at.query, at.key, low].forEach((p, n) => {
        knobs[n].input.value = p;
        knobs[n].output.textContent = p;
      });
      const score = products.reduce((a, b) => a + b);
      say.replaceChildren(`Query at ${at.query}, key at ${at.key}: distance ${number(apart, 0)}, score ${number(score, 3)}.`);
    }
    again.addEventListener("click", () => { Object.assign(at, start); draw(); });
    draw();
    return [
      ...knobs.map(({label}) => label),
      make("div", {class: "planes"}, ...planes.map(({svg}) => svg)),
      make("table", {class: "turned"}, columns(make("th", {scope: "col"}, "rotated"), speeds.map(speed => `speed ${speed}`)),
        make("tbody", {}, row("query", cells[0]), row("key", cells[1]), row("product", cells[2]), row("angle", cells[3]))),
      say,
      make("p", {class: "hint"}, "Drag the ends of the hands, or move the sliders. An angle is new where training never came. ", again),
    ];
  }

  // A photograph cut into patches: choose one, and the others fade as far as it does not attend to them.
  function patches({image, side, heads, weights, head, patch}) {
    const size = side * side + 1, TOP = 4, again = make("button", {type: "button"}, "start again");
    const step = code => (code - (code > 92 ? 36 : 35)) / 90;   // the letters hold square roots
    const roots = weights.map(text => [...text.slice(1)].map(letter => step(letter.charCodeAt(0))));
    const place = i => i ? `row ${Math.ceil(i / side)}, column ${(i - 1) % side + 1}` : "the class token";
    const named = i => i ? `the patch in ${place(i)}` : place(i);
    const cells = Array.from({length: size - 1}, () => make("td"));
    const buttons = cells.map((cell, n) => {
      const button = make("button", {type: "button"});
      button.addEventListener("pointermove", event => event.pointerType === "mouse" && choose(n + 1));
      button.addEventListener("click", () => choose(n + 1));
      button.addEventListener("focus", () => choose(n + 1));
      button.addEventListener("keydown", event => {
        const [dy, dx] = {ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1]}[event.key] || [0, 0];
        const y = Math.floor(n / side) + dy, x = n % side + dx;
        if (!dy && !dx) return;
        event.preventDefault();
        if (x >= 0 && x < side && y >= 0 && y < side) buttons[side * y + x].focus();
      });
      cell.append(button);
      return button;
    });
    const rows = Array.from({length: side}, (_, y) => make("tr", {}, ...cells.slice(side * y, side * y + side)));
    const photo = make("table", {class: "patches", "aria-label": "photograph, cut into patches", style: `background-image: url(${image})`}, make("tbody", {}, ...rows));
    const most = Array.from({length: TOP}, () => [make("th", {scope: "row"}), make("td", {class: "weight"})]);
    const say = make("p", {class: "say", "aria-live": "polite"});
    const picks = choices("head", heads, h => { now = h; choose(asking); });
    const token = make("button", {type: "button"}, "ask the class token");
    let now = head, asking = patch;
    function choose(t) {
      const line = roots[now].slice(size * t, size * t + size), weight = line.map(w => w * w);
      asking = t;
      picks.inputs[now].checked = true;
      token.setAttribute("aria-pressed", t === 0);
      buttons.forEach((button, n) => {
        cells[n].style.setProperty("--w", number(line[n + 1], 3));
        cells[n].classList.toggle("chosen", n + 1 === t);
        button.setAttribute("aria-label", `${place(n + 1)}: ${number(weight[n + 1], 2)}`);
        button.setAttribute("aria-pressed", n + 1 === t);
        button.tabIndex = n + 1 === (t || patch) ? 0 : -1;
      });
      const order = weight.map((_, s) => s).sort((a, b) => weight[b] - weight[a] || a - b);
      most.forEach(([name, cell], n) => {
        name.textContent = place(order[n]);
        cell.textContent = number(weight[order[n]], 2);
        cell.style.setProperty("--w", weight[order[n]]);
      });
      const best = order[0], whom = best === t ? "itself" : named(best);
      say.replaceChildren(`${named(t)} puts ${number(weight[best], 2)} of its attention on ${whom}.`.replace(/^t/, "T"));
    }
    token.addEventListener("click", () => choose(0));
    again.addEventListener("click", () => { now = head; choose(patch); });
    choose(patch);
    return [
      picks.set, photo, say,
      make("table", {class: "most"}, columns(make("th", {scope: "col"}, "attended most"), ["weight"]),
        make("tbody", {}, ...most.map(cells => make("tr", {}, ...cells)))),
      make("p", {class: "hint"}, "Choose a patch: point at it, tap it, or use the arrow keys. ", token, " ", again),
    ];
  }

  // A picture cut into patches: two of them can be exchanged, and a trained model reads what it then sees.
  function swap({names, classes, pictures, pairs, chances}) {
    const side = 4, size = pictures[0].length / side, spots = Array.from({length: side ** 2}, (_, i) => i);
    const cells = classes.map(() => make("td", {class: "share"}));
    const rows = classes.map((name, i) => make("tr", {}, make("th", {scope: "row"}, name), cells[i]));
    const say = make("p", {class: "say", "aria-live": "polite"}), again = make("button", {type: "button"}, "start again");
    const worst = make("button", {type: "button"}, "worst pair"), own = names.map(name => classes.indexOf(name));
    let which = 0, first = null, pair = null;
    const shown = choices("picture", names, i => { which = i; first = pair = null; draw(); });
    const tiles = spots.map(i => {
      const pixels = Array.from({length: size ** 2}, (_, k) => make("rect", {x: k % size, y: Math.floor(k / size), width: 1.02, height: 1.02}));
      const button = make("button", {type: "button", "aria-label": `patch ${i + 1}`}, make("svg", {viewBox: `0 0 ${size} ${size}`, "aria-hidden": true}, ...pixels));
      button.addEventListener("click", () => press(i));
      return {button, pixels};
    });
    const press = i => {                               // a third one begins anew
      if (first === null) [first, pair] = [i, null];
      else [first, pair] = [null, first === i ? null : [Math.min(first, i), Math.max(first, i)]];
      draw();
    };
    function draw() {
      const now = chances[which][pair ? 1 + pairs.findIndex(([a, b]) => a === pair[0] && b === pair[1]) : 0];
      const moved = pair || [], best = largest(now);
      tiles.forEach(({button, pixels}, i) => {
        const from = moved.includes(i) ? pair[0] + pair[1] - i : i;
        const top = size * Math.floor(from / side), left = size * (from % side);
        pixels.forEach((pixel, k) => pixel.style.setProperty("--w", pictures[which][top + Math.floor(k / size)][left + k % size] / 255));
        button.setAttribute("aria-pressed", i === first || moved.includes(i));
      });
      now.forEach((p, c) => { cells[c].textContent = number(p, 3); cells[c].style.setProperty("--w", p); });
      shown.inputs[which].checked = true;
      const what = pair ? `Patches ${pair[0] + 1} and ${pair[1] + 1} exchanged` : first === null ? "The whole picture" : `Patch ${first + 1}, and which other one? The whole picture`;
      say.replaceChildren(`${what}: the model says `, token(classes[best]), `, with ${number(now[best], 3)}.`);
    }
    worst.addEventListener("click", () => {            // whose exchange lowers the right class most
      const right = pairs.map((_, n) => chances[which][1 + n][own[which]]);
      [first, pair] = [null, pairs[right.indexOf(Math.min(...right))]];
      draw();
    });
    again.addEventListener("click", () => { which = 0; first = pair = null; draw(); });
    draw();
    return [
      shown.set,
      make("div", {class: "pair"},
        make("div", {class: "tiles", role: "group", "aria-label": "patches"}, ...tiles.map(({button}) => button)),
        make("table", {class: "next"}, columns(make("th", {scope: "col"}, "class"), ["probability"]), make("tbody", {}, ...rows))),
      say,
      make("p", {class: "hint"}, "Choose one patch, then another. ", worst, " ", again),
    ];
  }

  // A layer that was trained with one mistake or another: its map, the loss on its way, and two losses at its end.
  // Words come twice in its text: the sentence says how far away the key is, and what the row sums to, if not to 1.
  function trained({names, tokens, weights, losses, sums, floor, steps, row}) {
    const read = (line, t) => {
      const sum = line.reduce((a, b) => a + b), best = largest(line), far = Math.abs(best - t);
      const on = best === t ? ["itself"] : [token(tokens[best]), `, ${far} ${far > 1 ? "words" : "word"} ${best < t ? "before" : "later"}`];
      if (number(sum, 2) === "0.00") return ["The row of ", token(tokens[t]), " sums to 0.00, not 1: it attends to nothing."];
      if (number(sum, 2) === "1.00") return [token(tokens[t]), ` puts ${number(line[best], 3)} of its attention on `, ...on, "."];
      return ["The row of ", token(tokens[t]), ` sums to ${number(sum, 2)}, not 1; its largest weight, ${number(line[best], 3)}, is on `, ...on, "."];
    };
    const WIDTH = 240, HEIGHT = 100, top = Math.max(...losses.flat());
    const y = loss => number(HEIGHT * (1 - loss / top), 1).replace("−", "-");
    const large = make("div"), curve = make("path", {class: "curve"});
    const svg = make("svg", {class: "losses", viewBox: `-26 -6 ${WIDTH + 32} ${HEIGHT + 25}`, role: "img"},
      make("path", {class: "axis", d: `M0 0V${HEIGHT}H${WIDTH}`}), make("path", {class: "floor", d: `M0 ${y(floor)}H${WIDTH}`}), curve,
      make("text", {class: "name", x: -4, y: 8, "text-anchor": "end"}, number(top, 1)),
      make("text", {class: "name", x: -4, y: HEIGHT, "text-anchor": "end"}, "0"),
      make("text", {class: "name", x: WIDTH - 2, y: Number(y(floor)) + 11, "text-anchor": "end"}, "floor"),
      make("text", {class: "name", x: WIDTH / 2, y: HEIGHT + 14, "text-anchor": "middle"}, `loss during ${steps} steps of training`));
    const cells = [make("td"), make("td"), make("td")], say = make("p", {class: "say", "aria-live": "polite"});
    const picks = choices("attention", names, draw);
    let asking = row;
    function draw(i) {
      const [whole, alone] = sums[i];
      picks.inputs[i].checked = true;
      large.replaceChildren(...map({tokens, weights: weights[i], row: asking}, t => read(weights[i][asking = t], t)));
      curve.setAttribute("d", losses[i].map((loss, n) => `${n ? "L" : "M"}${number(n * WIDTH / (losses[i].length - 1), 1)} ${y(loss)}`).join(""));
      svg.setAttribute("aria-label", `the loss of ${names[i]} falls from ${number(losses[i][0], 2)} to ${number(losses[i].at(-1), 2)}`);
      [whole, alone, floor].forEach((loss, n) => { cells[n].textContent = number(loss, 3); });
      say.replaceChildren(token(names[i]), alone - whole > 0.001 ? ": word by word the loss differs. It leaks." : ": word by word the loss is the same. Nothing leaks.");
    }
    draw(0);
    return [
      picks.set, large, svg,
      make("table", {class: "ends"}, columns(make("th", {scope: "col"}, "loss"), ["whole texts", "word by word", "floor"]),
        make("tbody", {}, make("tr", {}, make("th", {scope: "row"}, "at the end"), ...cells))),
      say,
    ];
  }

  // A model of two layers as it is trained: its maps of one text, its loss beside that of rivals, and its next word.
  function grown({tokens, layers, words, steps, maps, losses, rivals, chances, rule, before, followed}) {
    const WIDTH = 240, HEIGHT = 100, all = [...losses, ...Object.values(rivals)], last = steps.length - 1;
    const low = Math.min(...all) - 0.02, high = Math.max(...all) + 0.02;
    const x = step => number(WIDTH * Math.sqrt(step / steps[last]), 1), y = loss => number(HEIGHT * (high - loss) / (high - low), 1);
    const svgs = layers.map(() => make("svg", {role: "img", viewBox: `-1.2 0 ${tokens.length + 1.2} ${tokens.length + 1.2}`}));
    const most = layers.map(() => make("span", {class: "most"})), dot = make("circle", {class: "tip weight", r: 4});
    const curve = make("svg", {class: "losses", viewBox: `-4 -6 ${WIDTH + 50} ${HEIGHT + 25}`, role: "img"},
      make("path", {class: "axis", d: `M0 0V${HEIGHT}H${WIDTH}`}),
      ...Object.entries(rivals).flatMap(([name, loss]) => [
        make("path", {class: "floor", d: `M0 ${y(loss)}H${WIDTH}`}),
        make("text", {class: "name", x: WIDTH + 4, y: Number(y(loss)) + 4}, name)]),
      make("path", {class: "curve", d: losses.map((loss, n) => `${n ? "L" : "M"}${x(steps[n])} ${y(loss)}`).join("")}), dot,
      make("text", {class: "name", x: WIDTH / 2, y: HEIGHT + 14, "text-anchor": "middle"}, "loss, over the steps of training"));
    const cells = words.map(() => [make("td", {class: "share"}), make("td", {class: "share"})]);
    const say = make("p", {class: "say", "aria-live": "polite"}), again = make("button", {type: "button"}, "start again");
    const time = slider("steps", {max: last, step: 1}, n => { now = n; draw(); });
    const letters = () => tokens.flatMap((word, t) => [[-0.7, t + 0.85], [t + 0.5, tokens.length + 0.95]].map(([x, y]) =>  // of queries, of keys
      make("text", {class: "name", style: "font-size: 1px", x, y, "text-anchor": "middle"}, word[0])));
    let now = last;
    function draw() {
      layers.forEach((name, l) => {
        svgs[l].setAttribute("aria-label", `${name}: a map of ${tokens.length} words`);
        svgs[l].replaceChildren(...maps[now][l].flatMap((line, t) => line.map((w, s) =>
          make("rect", {class: "cell", style: `--w:${w}`, x: s, y: t, width: 1, height: 1}))), ...letters());
        most[l].replaceChildren(l ? "what followed " : "word before ", number((l ? followed : before)[now], 2));
      });
      cells.forEach(([model, counted], i) => [[model, chances[now][i]], [counted, rule[i]]].forEach(([cell, share]) => {
        cell.textContent = number(share, 2);
        cell.style.setProperty("--w", share);
      }));
      dot.setAttribute("cx", x(steps[now]));
      dot.setAttribute("cy", y(losses[now]));
      curve.setAttribute("aria-label", `the loss is ${number(losses[now], 3)} after ${steps[now]} steps`);
      time.input.value = now;
      time.output.textContent = steps[now];
      time.input.setAttribute("aria-valuetext", `${steps[now]} steps`);
      const best = largest(chances[now]);
      say.replaceChildren(`After ${steps[now]} steps the loss is ${number(losses[now], 3)} nats. Next, after `, token(tokens.at(-1)),
        ", the model expects ", token(words[best]), `, with ${number(chances[now][best], 2)}.`);
    }
    again.addEventListener("click", () => { now = last; draw(); });
    draw();
    return [
      time.label,
      make("div", {class: "heads crossed"}, ...layers.map((name, l) => make("div", {class: "small"}, svgs[l], make("span", {}, name), most[l]))),
      curve, say,
      make("table", {class: "next"}, columns(make("th", {scope: "col"}, "next word"), ["model", "counting pairs"]),
        make("tbody", {}, ...words.map((name, i) => make("tr", {}, make("th", {scope: "row"}, name), ...cells[i])))),
      make("p", {class: "hint"}, "Move the slider, or focus it and use the arrow keys. ", again),
    ];
  }

  // Texts, each by the right model or by one with an error: the reader guesses, and then sees whose it is and what tests say.
  function guess({questions, texts, order, names, measures, question}) {
    const kinds = ["none yet", "the right model", "one with an error"], letters = names.map((_, i) => String.fromCharCode(65 + i));
    const words = make("p", {class: "written"}), say = make("p", {class: "say", "aria-live": "polite"});
    const cells = Object.keys(measures).map(() => make("td")), again = make("button", {type: "button"}, "start again");
    const asks = choices("question", questions, i => { asked = i; told = 0; draw(); });
    const picks = choices("text", letters, i => { read = i; told = 0; draw(); });
    const guesses = choices("your guess", kinds, i => { told = i; draw(); });
    let asked = question, read = 0, told = 0;
    function draw() {
      const who = order[asked][read], right = who === 0;
      asks.inputs[asked].checked = picks.inputs[read].checked = guesses.inputs[told].checked = true;
      words.textContent = texts[asked][who];
      words.classList.toggle("none", !texts[asked][who]);
      Object.values(measures).forEach((values, m) => { cells[m].textContent = told ? values[who] : "?"; });
      if (!told) say.replaceChildren("Who wrote this?");
      else say.replaceChildren((told === 1) === right ? "Yes: " : "No: ", ...(right ? ["this is the right model."] : ["a model with the error ", token(names[who]), "."]));
    }
    again.addEventListener("click", () => { asked = question; read = told = 0; draw(); });
    draw();
    return [
      asks.set, picks.set, words, guesses.set, say,
      make("table", {class: "ends"}, make("thead", {}, make("tr", {}, ...Object.keys(measures).map(name => make("th", {scope: "col"}, name)))),
        make("tbody", {}, make("tr", {}, ...cells))),
      make("p", {class: "hint"}, "Read a text, and guess. ", again),
    ];
  }

  // Attention in tiles: which scores exist, and what is kept for each query after each tile.
  function tiles({tokens, q, k, v, start}) {
    const scores = q.map(query => k.map(key => key.reduce((sum, a, j) => sum + a * query[j], 0) / Math.sqrt(key.length)));
    const n = tokens.length, sizes = [1, 2, 3, 4];
    let [size, causal] = start, done = start[2];
    const say = make("p", {class: "say", "aria-live": "polite"});
    const blocks = choices("tiles of", sizes.map(String), i => { size = i; draw(); });
    const kinds = choices("mask", ["none", "causal"], i => { causal = i; draw(); });
    const steps = slider("computed", {max: n * n, value: done}, to => { done = to; draw(); });
    const cells = tokens.map(() => tokens.map(() => make("td")));
    const kept = tokens.map(() => [make("td"), make("td"), make("td")]);
    const named = (name, t, of) => make("tr", {}, make("th", {scope: "row"}, name), ...of[t]);
    const upright = tokens.map(name => make("span", {}, name));
    function draw() {
      const block = sizes[size], open = (t, s) => causal === 0 || s <= t, order = [];
      for (let top = 0; top < n; top += block)
        for (let left = 0; left < n && open(Math.min(top + block, n) - 1, left); left += block) order.push([top, left]);
      done = Math.min(done, order.length);
      Object.assign(steps.input, {max: order.length, value: done});
      const state = tokens.map(() => ({m: -Infinity, total: 0, out: v[0].map(() => 0)})), rose = [];
      cells.flat().forEach(cell => { cell.textContent = ""; cell.className = "closed"; });
      order.forEach(([top, left], i) => {
        rose.length = 0;
        for (let t = top; t < Math.min(top + block, n); t++) {
          const row = state[t], met = [];
          for (let s = left; s < Math.min(left + block, n); s++) {
            const cell = cells[t][s];
            cell.className = i >= done ? "" : i === done - 1 ? "true now" : "true";
            if (i < done && open(t, s)) met.push(s);
            cell.textContent = i >= done ? "" : open(t, s) ? number(scores[t][s], 1) : "−∞";
          }
          if (!met.length) continue;
          const m = Math.max(row.m, ...met.map(s => scores[t][s])), factor = Math.exp(row.m - m);
          if (row.total && m > row.m) rose.push([t, factor]);
          row.total *= factor;
          row.out = row.out.map(x => x * factor);
          met.forEach(s => {
            const power = Math.exp(scores[t][s] - m);
            row.total += power;
            row.out = row.out.map((x, c) => x + power * v[s][c]);
          });
          row.m = m;
        }
        if (i === done - 1) say.rose = [...rose];
      });
      state.forEach(({m, total, out}, t) => {
        const shown = total ? [number(m, 2), number(total, 2), vector(out.map(x => x / total), 2)] : ["", "", ""];
        shown.forEach((words, c) => { kept[t][c].textContent = words; });
      });
      steps.output.textContent = done === 1 ? "1 tile" : `${done} tiles`;
      steps.input.setAttribute("aria-valuetext", steps.output.textContent);
      blocks.inputs[size].checked = kinds.inputs[causal].checked = true;
      const raised = done ? say.rose : [];
      say.replaceChildren(`${done} of ${order.length} tiles. `,
        ...(!done ? ["Nothing is kept yet."] : raised.length
          ? ["A maximum rose; sum and output were multiplied: ", ...raised.flatMap(([t, factor], i) => [i ? ", " : "", token(tokens[t]), ` by ${number(factor, 3)}`]), "."]
          : ["No maximum that was there has risen."]),
        done === order.length ? " Every output is that of softmax." : "");
    }
    draw();
    return [
      blocks.set, kinds.set, steps.label,
      make("div", {class: "pair"},
        make("table", {class: "map given tiles"}, columns(make("td", {}, "scores"), upright), make("tbody", {}, ...tokens.map((name, t) => named(name, t, cells)))),
        make("table", {class: "ends"}, columns(make("td", {}, "kept"), ["maximum", "sum", "output"]), make("tbody", {}, ...tokens.map((name, t) => named(name, t, kept))))),
      say,
    ];
  }

  // Documents in one row: a mask and positions are chosen, and a map shows who attends to whom.
  function pack({tokens, documents, positions, weights, row}) {
    const masks = ["causal", "causal and segment"], counts = ["count on", "restart"], large = make("div");
    const again = make("button", {type: "button"}, "start again");
    const across = (line, t) => line.reduce((sum, w, s) => documents[s] === documents[t] ? sum : sum + w, 0);
    const cells = tokens.map(() => make("td"));
    let mask = 0, place = 0, asking = row;
    const picks = [choices("mask", masks, i => { mask = i; draw(); }), choices("positions", counts, i => { place = i; draw(); })];
    function draw() {
      picks[0].inputs[mask].checked = picks[1].inputs[place].checked = true;
      const table = weights[mask][place];
      cells.forEach((cell, t) => { cell.textContent = positions[place][t]; });
      large.replaceChildren(...map({tokens, weights: table, row: asking}, t => {
        asking = t;
        return [token(tokens[t]), `, of document ${documents[t] + 1}, puts ${number(across(table[t], t), 3)} of its attention on other documents.`];
      }));
    }
    again.addEventListener("click", () => { mask = place = 0; asking = row; draw(); });
    draw();
    return [
      ...picks.map(({set}) => set),
      make("table", {class: "ends places"}, columns(make("th", {scope: "row"}, "document"), documents.map(n => n + 1)),
        make("tbody", {}, make("tr", {}, make("th", {scope: "row"}, "position"), ...cells))),
      large, make("p", {class: "hint"}, again),
    ];
  }

  // Pairs written into one matrix, one after the other, and each key read back.
  function state({names, foods, writes, k, v, start}) {
    const rules = ["added", "delta rule"], d = k[0].length, axes = [...k[0].keys()];
    const times = (key, S) => axes.map(c => key.reduce((sum, a, r) => sum + a * S[r][c], 0));
    const apart = (a, b) => a.reduce((sum, x, c) => sum + (x - b[c]) ** 2, 0);
    let [rule, asked, done] = start;
    const say = make("p", {class: "say", "aria-live": "polite"});
    const kinds = choices("written", rules, i => { rule = i; draw(); });
    const asks = choices("ask", names, i => { asked = i; draw(); });
    const steps = slider("pairs", {max: writes.length, value: done}, to => { done = to; draw(); });
    const cells = axes.map(() => axes.map(() => make("td")));
    const wanted = axes.map(() => make("td")), found = axes.map(() => make("td"));
    const list = names.map(() => [make("td"), make("td"), make("td")]);
    const named = (words, line) => make("tr", {}, make("th", {scope: "row"}, words), ...line);
    const rows = names.map((name, a) => named(name, list[a]));
    function draw() {
      const S = axes.map(() => axes.map(() => 0)), held = new Map();
      writes.slice(0, done).forEach(([a, b]) => {
        const read = times(k[a], S), write = v[b].map((x, c) => rule ? x - read[c] : x);
        k[a].forEach((x, r) => write.forEach((y, c) => { S[r][c] += x * y; }));
        held.set(a, b);
      });
      cells.forEach((line, r) => line.forEach((cell, c) => { cell.textContent = number(S[r][c], 2); }));
      const errors = [...held].map(([a, b]) => apart(times(k[a], S), v[b]) / v[b].reduce((sum, x) => sum + x * x, 0));
      const nearest = names.map((_, a) => {
        const read = times(k[a], S), gaps = v.map(value => apart(read, value));
        return gaps.indexOf(Math.min(...gaps));
      });
      names.forEach((_, a) => {
        const at = [...held.keys()].indexOf(a), written = at >= 0;
        rows[a].className = a === asked ? "chosen" : "";
        const shown = written ? [foods[held.get(a)], number(errors[at], 2), foods[nearest[a]]] : ["", "", ""];
        shown.forEach((words, c) => { list[a][c].textContent = words; });
        list[a][2].className = written && nearest[a] !== held.get(a) ? "away" : "";
      });
      const read = times(k[asked], S), food = held.get(asked);
      axes.forEach(c => {
        wanted[c].textContent = food === undefined ? "" : number(v[food][c], 2);
        found[c].textContent = number(read[c], 2);
      });
      const [a, b] = done ? writes[done - 1] : [];
      steps.output.textContent = done === 1 ? "1 pair" : `${done} pairs`;
      steps.input.setAttribute("aria-valuetext", steps.output.textContent);
      kinds.inputs[rule].checked = asks.inputs[asked].checked = true;
      say.replaceChildren(...(done ? ["Last: ", token(names[a]), " with ", token(foods[b]), ". "] : ["Nothing is written. "]),
        ...(done ? [`Mean error ${number(errors.reduce((sum, x) => sum + x, 0) / errors.length, 2)}. `] : []),
        ...(food === undefined ? ["Nobody wrote ", token(names[asked]), "."]
          : [token(names[asked]), " should read ", token(foods[food]), nearest[asked] === food ? ", and that is closest." : ", but ", ...(nearest[asked] === food ? [] : [token(foods[nearest[asked]]), " is closer."])]));
    }
    draw();
    return [
      kinds.set, steps.label, asks.set,
      make("div", {class: "pair"},
        make("table", {class: "map given"}, columns(make("td", {}, "state"), axes.map(c => c + 1)), make("tbody", {}, ...cells.map((line, r) => named(r + 1, line)))),
        make("table", {class: "ends reads"}, columns(make("td", {}, "asked"), axes.map(c => c + 1)), make("tbody", {}, named("value", wanted), named("read", found)))),
      say,
      make("table", {class: "ends notes"}, columns(make("td", {}, "key"), ["value", "error", "closest"]), make("tbody", {}, ...rows)),
    ];
  }

  // The corners of a set of points, in order.
  function hull(points) {
    const sorted = [...points].sort(([a, b], [c, d]) => a - c || b - d);
    const half = list => list.reduce((corners, point) => {
      const bends = ([a, b], [c, d]) => (c - a) * (point[1] - b) > (d - b) * (point[0] - a);
      while (corners.length > 1 && !bends(...corners.slice(-2))) corners.pop();
      return [...corners, point];
    }, []);
    return [...half(sorted).slice(0, -1), ...half(sorted.reverse()).slice(0, -1)];
  }

  const kinds = {map, heads, crossed, head, mask, sample, lens, row, dial, swap, patches, trained, grown, guess, pack, tiles, state,
    ...globalThis.moreFigures?.({make, number, share, token, largest})};
  const upgrade = () => Object.entries(LIVE.figures).forEach(([name, {kind, caption, ...numbers}]) => {
    const still = document.querySelector(`figure#${name} > :first-child`);
    if (!still) return;                                // another page
    const live = make("div", {class: "live"}, ...kinds[kind](numbers));
    Object.entries(LIVE.roles).forEach(([role, color]) => live.style.setProperty(`--${role}`, color));
    still.classList.add("still");                      // for paper
    still.before(live);
    const words = document.querySelector(`figure#${name} .caption-text`); // the front page has words of its own
    if (!words) return;
    words.classList.add("still");
    words.after(make("span", {class: "caption-text moving"}, ...caption.split("*").map((part, i) => i % 2 ? token(part) : part)));
  });
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", upgrade);
  else upgrade();
})();
