// Sphinx's search finds pages that hold every word. Readers ask in their own words, and want the
// section: so each heading that shares some of them is a result, the rarer the words the better.
Object.assign(Scorer, {objNameMatch: 80, term: 48, title: 50}); // after the headings that fit: exact names, then pages
(() => {
  const stemmer = new Stemmer(), stem = word => stemmer.stemWord(word);
  const split = text => splitQuery(text.normalize("NFKC").toLowerCase()).filter(word => !stopwords.includes(word) && !/^\d+$/.test(word));
  // d_k is found as dk, too, and need_weights by its parts
  const whole = word => stem(word.replaceAll("_", ""));
  const parts = word => word.includes("_") ? word.split("_").filter(part => part.length > 2).map(stem) : [];
  const words = text => new Set(split(text).flatMap(word => [whole(word), ...parts(word)]));

  // what the book says: what visitors type
  const SYNONYMS = {
    "teach book": "slide, lecture, exercise sheet",
    "about book": "pdf, license, licence, copyright, cite, citation, bibtex",
    "install run": "download, github, clone, gpu, cuda, requirements",
    "package attn_lib": "api, docs, documentation, reference",
    "key terms": "glossary, dictionary, vocabulary",
    "main libraries": "jax, onnx",
    "keras flax": "tensorflow",
    "grouped-query attention": "mqa, multi query",
    "grouped-query KV cache": "memory, vram",
    "quantization perplexity": "quantisation, int4",
    "heads cost": "complexity, flops, quadratic",
    "MultiheadAttention": "mha",
    "same mask six calls": "sdpa",
    "attention without matrix tiles": "flash attention",
    "trained MiniLM DINOv2 SmolLM2": "load smollm2, use smollm2",
    "future hidden": "leak, leakage, leaking",
    "causal mask": "lookahead mask, look ahead, subsequent mask",
    "number closed cells": "inf, 1e9, 1e4, finfo, fp16, float16, half precision, overflow, masked_fill",
    "true means attend masked": "key_padding_mask, src_key_padding_mask",
    "window": "swa, local attention",
    "read longer texts": "context length, long context, extrapolation, yarn, rope scaling",
    "initialiser layer": "initialization, init, xavier",
    "LayerNorm RMSNorm": "layer norm, layer normalization",
    "feed-forward SwiGLU": "ffn, mlp, feedforward",
    "train with warm-up": "warmup",
    "MiniLM": "bert, sbert, sentence transformer",
    "search meaning embeddings": "similarity, retrieval",
    "attention sink": "bos, cls",
    "pretrained weights": "huggingface, hugging face, safetensors",
    "libraries models": "qwen, mistral, olmo",
    "tokenize byte pair": "tokenizer, tokenization, bpe",
    "chat template": "eos, system prompt, instruct",
    "sample temperature": "nucleus",
    "greedy decoding": "beam",
    "guess next word": "autoregressive",
    "language model": "decoder only, llm",
    "encoder decoder": "seq2seq, sequence to sequence, translation",
    "put keys back activation patching": "causal tracing",
    "watch circuit form": "previous token head",
    "pack documents": "cu_seqlens, position_ids",
    "cache cut text": "chunked prefill, cache different output",
    "batch size last bits": "nondeterministic",
    "delta rule": "deltanet, fast weight",
    "multi head latent attention": "mla",
    "logit lens": "interpretability, explainability, mechanistic",
    "map object": "saliency, heatmap",
    "forecast": "time series, timeseries",
  };
  Search.synonyms = new Map(Object.entries(SYNONYMS).flatMap(([said, typed]) => typed.split(", ").map(word => [word, said])));
  const meant = query => {
    const {terms, docnames} = Search._index, typed = [...Search.synonyms.keys()].sort((a, b) => b.length - a.length);
    const known = new RegExp(`(?<![\\p{L}\\p{N}_])(${typed.join("|")})s?(?![\\p{L}\\p{N}_])`, "giu");
    const told = term => [terms[term]].flat().some(file => docnames[file].endsWith("/notation"));
    return query.replace(/[-\s]+/g, " ").replace(known, (_, word) => Search.synonyms.get(word.toLowerCase()))
      // Chinese has no spaces: a word is found inside those that the notation explains
      .replace(/\p{Script=Han}+/gu, word => Object.keys(terms).some(term => term.includes(word) && told(term)) ? "key terms Chinese" : word);
  };

  const headings = ({alltitles, titles}) => {
    const all = Object.entries(alltitles).flatMap(([title, places]) => places
      .filter(([file, id]) => id !== null || titles[file].replace(/<[^>]*>/g, "").endsWith(title)) // not those of boxes
      .map(([file, id]) => ({title, file, id, words: words(title)})));
    const first = new Map(all.filter(one => one.id === null).map(one => [one.file, one.words]));
    return all.map(one => ({...one, page: first.get(one.file) || new Set()}));
  };

  const sections = query => {
    const {docnames, filenames, titles, terms, titleterms} = Search._index, all = headings(Search._index);
    const listed = ({file}) => docnames[file].endsWith("/known_mistakes"); // a list for those who know what they look for
    const told = all.filter(one => !listed(one));
    const often = Object.create(null);
    told.forEach(one => one.words.forEach(word => { often[word] = (often[word] || 0) + 1; }));
    const holding = word => [terms[stem(word)], titleterms[stem(word)]].flat().filter(file => file !== undefined);
    const known = word => often[whole(word)] || holding(word).length || parts(word).length;
    const full = word => known(word) || word.length < 3 ? word // half a word is the commonest that begins so
      : Object.keys(often).filter(other => other.startsWith(word)).sort((a, b) => often[b] - often[a])[0] || word;
    const asked = split(meant(query)).map(full).map(word =>
      ({word, files: holding(word), worth: known(word) ? Math.log(1 + told.length / (often[whole(word)] || 1)) : 0}));
    const total = asked.reduce((sum, {worth}) => sum + worth, 0);
    const found = all.map(one => {
      const fit = ({word, files}) => {
        if (one.words.has(whole(word))) return 1;
        const near = parts(word), there = near.filter(part => one.words.has(part)).length / (near.length || 1);
        return 0.3 * there + Math.max(one.page.has(whole(word)) ? 0.5 : 0, files.includes(one.file) ? 0.4 : 0);
      };
      const shares = asked.some(({word}) => [whole(word), ...parts(word)].some(key => one.words.has(key)));
      const score = shares ? asked.reduce((sum, each) => sum + each.worth * fit(each), 0) / total : 0;
      const chapter = /^<span/.test(titles[one.file]); // its title begins with its number
      const label = words(one.title.split(": ")[1] || ""), named = asked.every(({word}) => label.has(whole(word)));
      // of two alike, the chapter's section, then the one that has the words for its name, then the shorter
      return {...one, score: (listed(one) ? 80 : 100) * score + chapter - (one.id === null) + 0.5 * named + 0.5 / one.words.size};
    });
    const best = Math.max(...found.map(one => one.score));
    return found.filter(one => one.score > Math.max(20, best * 2 / 3)).map(({title, file, id, score}) =>
      [docnames[file], id === null ? titles[file] : `${titles[file]} > ${title}`, id === null ? "" : "#" + id, null, score, filenames[file]]);
  };

  const parse = Search._parseQuery, find = Search.performTermsSearch;
  const field = document.querySelector(".bd-search-container input");
  let asked;
  Search._parseQuery = query => {
    const parsed = parse(asked = query), {terms, docnames} = Search._index;
    localStorage.removeItem("sphinx_highlight_terms"); // Sphinx would mark them all over whichever page is opened next
    parsed[4].forEach(term => term.length < 3 && parsed[4].delete(term)); // a letter is no part of a name
    // nor is it marked on the page to which a result leads, nor what half of the pages hold
    const common = word => word.length < 3 || [terms[stem(word)] || []].flat().length > docnames.length / 2;
    Search.marks = [...parsed[3]].filter(word => !common(word)).flatMap(word => [word, stem(word)]).join(" ");
    return parsed;
  };
  Search.performTermsSearch = (...terms) => [...sections(asked), ...find(...terms)];

  // a result is a section, once; then its page, and how it begins, which the index holds: from disk no page can be read
  const root = document.documentElement.dataset.content_root;
  const item = ([file, title, anchor, said]) => {
    const make = (name, rest) => Object.assign(document.createElement(name), rest);
    const [page, section] = title.split(" > "), result = make("li");
    // a table tells the row that holds most of the words, of Chinese ones if there are some
    const meant = asked.match(/\p{Script=Han}+/gu) || split(asked);
    const held = row => meant.filter(word => row.toLowerCase().includes(word)).length;
    const told = [(Search._index.excerpts[file] || {})[anchor.slice(1)]].flat();
    const begins = told[1] ? told.reduce((best, row) => held(row) > held(best) ? row : best) : told[0];
    result.append(make("a", {innerHTML: section || page, href: root + file + DOCUMENTATION_OPTIONS.LINK_SUFFIX + anchor}));
    if (section || said) result.append(make("p", {className: "page", innerHTML: section ? page : said}));
    if (begins && !said) result.append(make("p", {className: "context", textContent: begins}));
    return result;
  };
  Search.list = query => {
    const seen = new Set();
    return Search._performSearch(...Search._parseQuery(query)).reverse()
      .filter(([file, , anchor]) => !seen.has(file + anchor) && seen.add(file + anchor)).map(item);
  };
  Search.query = query => {
    const found = Search.list(query);
    Search.output.append(...found);
    _finishSearch(found.length); // which counts pages
    if (found.length) Search.status.innerText = `${found.length} result${found.length > 1 ? "s" : ""}`;
    (Search.output.querySelector("a") || field).focus();
  };
  // another page learns from its address what to mark: from disk, what one page stores another may not find
  ["click", "auxclick"].forEach(kind => document.addEventListener(kind, ({target}) => {
    const link = target.closest("ul.search a");
    if (link) link.search = link.pathname === location.pathname ? location.search : new URLSearchParams({marks: Search.marks});
  }));
  if (field) field.focus(); // until there are results
})();
