// The figure of the page on dates: a text is read, and vectors of its context are exchanged for another's.
// It begins with attn_lib's numbers; the model, dates_model.js, comes when the page has been painted.
"use strict";
globalThis.moreFigures = (here => ({make, number, share, token, largest}) => {
  const NARROW = 20.5, NAMES = 26;  // widths: of a column, of the first one
  const painted = new Promise(go => document.readyState === "complete" ? go() : addEventListener("load", () => setTimeout(go)));
  const model = () => new Promise((found, lost) => {
    const script = document.createElement("script");
    script.addEventListener("load", () => found(dateReader(DATES_MODEL)));
    script.addEventListener("error", lost);
    script.src = new URL("dates_model.js", here);
    document.head.append(script);
  });
  const clean = typed => typed.normalize("NFC").replace(/\u00a0/g, " ");
  const seen = letter => letter.replace(/[ \u202f]/, "␣");
  // The same text with another year in it, or with another number at its end.
  function partner(text) {
    const [old] = text.match(/\d{4}/) || text.match(/\d\d(?=\D*$)/) || [""];
    if (!old) return text;
    const at = text.lastIndexOf(old), year = ["1987", "2031"].map(one => one.slice(-old.length)).find(one => one !== old);
    return text.slice(0, at) + year + text.slice(at + old.length);
  }
  // The mean over layers and heads of a character's weights.
  const mean = layers => Array.from(layers[0][0], (_, s) => layers.flat().reduce((sum, head) => sum + head[s], 0) / layers.flat().length);

  function read({text, other, answer, weights, examples, row: start}) {
    const field = (value, name) => make("input", {type: "text", class: name, value, spellcheck: false, autocomplete: "off", autocapitalize: "off", "aria-describedby": "dates-said"});
    const labelled = (words, input) => make("label", {}, make("span", {}, words), input);
    const first = field(text, "text"), second = field(other, "other");
    const iso = make("p", {class: "iso", "aria-live": "polite", "aria-atomic": true}), maps = make("div", {class: "bands"});
    const say = make("p", {class: "say", "aria-live": "polite", id: "dates-said"});
    const again = make("button", {type: "button"}, "start again");
    const buttons = examples.map(([lang, one, two]) => {
      const button = make("button", {type: "button", lang}, one);
      button.addEventListener("click", () => take(one, two));
      return button;
    });
    let reader = null, row = start, limit = 0, own = false;  // own: the other date was typed
    let chosen = new Set();                                  // whose vectors are exchanged
    // what is shown: the two texts, what is written without and with an exchange, whose weights, what is exchanged
    let now = {text: [...text], other: [...other], plain: answer, answer, weights, moved: []};

    function take(one, two) {
      first.value = one;
      second.value = two;
      own = false;
      row = 0;
      chosen = new Set();
      reread(true);
    }
    // Why a text cannot be read, or nothing.
    function fault(typed, whose) {
      const strange = reader.unknown(typed).map(letter => token(letter)), {length} = [...typed];
      if (!typed.trim()) return [`Type ${whose}.`];
      if (strange.length) return [`The model cannot read ${whose}: no text of its training has `, ...strange.flatMap((sign, i) => i ? [", ", sign] : [sign]), "."];
      if (length > reader.LONGEST) return [`The model reads at most ${reader.LONGEST} characters; ${whose} has ${length}.`];
      return null;
    }
    function reread(fresh = false) {
      if (!reader) return;
      const [mine, theirs] = [first, second].map(input => clean(input.value));
      const wrong = fault(mine, "the date"), other = fault(theirs, "the other date");
      now = {text: [...mine], other: [...theirs], wrong: wrong || other, plain: "", answer: "", weights: [], moved: []};
      if (!wrong) {
        const context = reader.encode(mine), away = other ? [] : reader.encode(theirs);
        now.moved = [...context.keys()].filter(s => chosen.has(s) && away[s]);  // it may be shorter
        const mixed = reader.write(context.map((line, s) => now.moved.includes(s) ? away[s] : line));
        now.plain = reader.write(context).answer;
        now.theirs = other ? "" : reader.write(away).answer;
        now.answer = mixed.answer;
        now.weights = mixed.weights.map(mean);
      }
      draw(fresh);
    }
    function told() {
      if (now.wrong) return now.wrong;
      if (now.moved.length) {
        const parts = [["year", 0, 4], ["month", 5, 7], ["day", 8, 10]].flatMap(([part, from, to]) => {
          const [was, is, wanted] = [now.plain, now.answer, now.theirs].map(written => written.slice(from, to));
          return is === was ? [] : [`the ${part} is ${is || "gone"}${is && is === wanted ? ", that of the other date" : ""}`];
        });
        return [`${now.moved.length} ${now.moved.length > 1 ? "vectors" : "vector"} exchanged: ${parts.join("; ") || "the answer stays"}.`];
      }
      if (!now.answer) return ["The model writes nothing."];
      const line = now.weights[row], best = largest(line), on = seen(now.text[best]);
      return ["Writing ", token(now.answer[row]), `, character ${row + 1}, it puts ${number(line[best], 2)} of its attention on `, on === "␣" ? "the gap" : token(on), `, character ${best + 1}.`];
    }
    function choose(t) {
      row = t;
      maps.querySelectorAll("tbody tr").forEach(line => {
        const button = line.querySelector("button"), here = Number(line.dataset.t) === t;
        line.classList.toggle("chosen", here);
        button.setAttribute("aria-pressed", here);
        button.tabIndex = here ? 0 : -1;
      });
      say.replaceChildren(...told());
    }
    function exchange(s) {
      if (!chosen.delete(s)) chosen.add(s);
      reread();
      maps.querySelector(`[data-s="${s}"]`)?.focus();
    }
    function key(s) {
      const mine = seen(now.text[s]), theirs = seen(now.other[s] || "");
      const name = `${mine}, character ${s + 1}: ${theirs ? `exchange its vector for that of ${theirs}` : "the other date is shorter"}`;
      const button = make("button", {type: "button", "data-s": s, "aria-pressed": now.moved.includes(s), "aria-label": name}, make("b", {}, mine), make("small", {}, theirs));
      button.disabled = !theirs || Boolean(now.wrong);
      button.addEventListener("click", () => exchange(s));
      button.addEventListener("keydown", event => {
        const next = s + ({ArrowLeft: -1, ArrowRight: 1}[event.key] || 0);
        if (next !== s) maps.querySelector(`[data-s="${next}"]`)?.focus();
      });
      return make("th", {scope: "col"}, button);
    }
    function line(t, places) {
      const button = make("button", {type: "button"}, now.answer[t]), weights = now.weights[t];
      const cells = places.map(s => make("td", {style: `--w:${number(weights[s], 4)}`, class: weights[s] > 0.93 ? "high" : ""}, make("span", {}, share(weights[s]))));
      const made = make("tr", {"data-t": t, style: `--t:${t}`}, make("th", {scope: "row"}, button), ...cells);
      made.addEventListener("pointermove", event => event.pointerType === "mouse" && choose(t));
      made.addEventListener("click", () => choose(t));
      button.addEventListener("focus", () => choose(t));
      button.addEventListener("keydown", event => {
        const next = made.parentNode.rows[t + ({ArrowUp: -1, ArrowDown: 1}[event.key] || 0)];
        if (next && next !== made) { event.preventDefault(); next.querySelector("button").focus(); }
      });
      return made;
    }
    function draw(fresh) {
      const {length} = now.text, count = Math.ceil(length / (limit || length)), size = Math.ceil(length / count);
      const signs = now.answer ? [...now.answer] : ["?"];
      row = Math.min(row, signs.length - 1);
      iso.replaceChildren(...signs.map((sign, t) => make("span", {class: now.answer[t] === now.plain[t] ? "" : "follows", style: `--t:${t}`}, sign)));
      // where a text is too wide, it is broken into several tables, as lines are
      const bands = now.answer ? Array.from({length: count}, (_, n) => [...now.text.keys()].slice(n * size, n * size + size)) : [];
      maps.replaceChildren(...bands.map(places => make("table", {class: "map keys", style: `--n:${places.length}; --size:${size}`},
        make("thead", {}, make("tr", {}, make("td"), ...places.map(key))),
        make("tbody", {}, ...now.weights.map((_, t) => line(t, places))))));
      [iso, maps].forEach(part => {
        part.classList.remove("fresh");
        part.getBoundingClientRect();                        // so that it begins anew
        part.classList.toggle("fresh", Boolean(fresh));
      });
      first.setAttribute("aria-invalid", !now.answer);
      buttons.forEach((button, i) => button.setAttribute("aria-pressed", examples[i][1] === now.text.join("")));
      choose(row);
    }

    first.addEventListener("input", () => {
      const known = examples.find(([, one]) => one === first.value);
      if (!own) second.value = known ? known[2] : partner(first.value);
      chosen = new Set();
      reread();
    });
    second.addEventListener("input", () => { own = true; reread(); });
    again.addEventListener("click", () => { take(text, other); choose(start); });
    new ResizeObserver(([{contentRect: {width}}]) => {
      const fits = Math.floor((width - NAMES) / NARROW);
      if (fits > 0 && fits !== limit) { limit = fits; draw(); }
    }).observe(maps);
    draw();
    const asked = () => chosen.size || first.value !== text || second.value !== other;  // before it came
    painted.then(model).then(found => { reader = found; maps.dataset.ready = true; if (asked()) reread(); },
      () => say.replaceChildren("The model did not come; only this date can be shown."));
    return [make("div", {class: "reader"},
      labelled("Type a date", first), make("div", {class: "examples", role: "group", "aria-label": "examples"}, ...buttons),
      iso, say, make("p", {class: "hint"}, "Press a character or a gap to exchange its vector for that of the other date."),
      maps, labelled("Other date", second), make("p", {class: "hint"}, again))];
  }
  return {read};
})(document.currentScript.src);
