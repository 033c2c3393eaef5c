// Sphinx's search finds pages that hold every word. Readers ask in their own words, and want the
// section: so each heading that shares some of them is a result, the rarer the words the better.
Object.assign(Scorer, {objNameMatch: 80, term: 48, title: 50}); // after the headings that fit: exact names, then pages
(() => {
  const stemmer = new Stemmer(), stem = word => stemmer.stemWord(word);
  const split = text => splitQuery(text.toLowerCase()).filter(word => !stopwords.includes(word) && !/^\d+$/.test(word));
  // d_k is found as dk, too, and need_weights by its parts
  const whole = word => stem(word.replaceAll("_", ""));
  const parts = word => word.includes("_") ? word.split("_").filter(part => part.length > 2).map(stem) : [];
  const words = text => new Set(split(text).flatMap(word => [whole(word), ...parts(word)]));

  const headings = ({alltitles, titles}) => {
    const all = Object.entries(alltitles).flatMap(([title, places]) => places
      .filter(([file, id]) => id !== null || titles[file].endsWith(title)) // not those of boxes
      .map(([file, id]) => ({title, file, id, words: words(title)})));
    const first = new Map(all.filter(one => one.id === null).map(one => [one.file, one.words]));
    return all.map(one => ({...one, page: first.get(one.file) || new Set()}));
  };

  const sections = query => {
    const {docnames, filenames, titles, terms, titleterms} = Search._index, all = headings(Search._index);
    const listed = ({file}) => docnames[file].endsWith("/known_mistakes"); // a list for those who know what they look for
    const told = all.filter(one => !listed(one));
    const holding = word => [terms[stem(word)], titleterms[stem(word)]].flat().filter(file => file !== undefined);
    const asked = split(query).map(word => {
      const often = told.filter(one => one.words.has(whole(word))).length, files = holding(word);
      return {word, files, worth: often || files.length || parts(word).length ? Math.log(1 + told.length / (often || 1)) : 0};
    });
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
      // of two alike, the chapter, then the one that has the words for its name, then the shorter
      return {...one, score: (listed(one) ? 80 : 100) * score + chapter + 0.5 * named + 0.5 / one.words.size};
    });
    const best = Math.max(...found.map(one => one.score));
    return found.filter(one => one.score > Math.max(20, best * 2 / 3)).map(({title, file, id, score}) =>
      [docnames[file], id === null ? titles[file] : `${titles[file]} > ${title}`, id === null ? "" : "#" + id, null, score, filenames[file]]);
  };

  const parse = Search._parseQuery, find = Search.performTermsSearch;
  const field = document.querySelector(".bd-search-container input");
  let asked, marks;
  Search._parseQuery = query => {
    const parsed = parse(asked = query), {terms, docnames} = Search._index;
    localStorage.removeItem("sphinx_highlight_terms"); // Sphinx would mark them all over whichever page is opened next
    parsed[4].forEach(term => term.length < 3 && parsed[4].delete(term)); // a letter is no part of a name
    // nor is it marked on the page to which a result leads, nor what half of the pages hold
    const common = word => word.length < 3 || [terms[stem(word)] || []].flat().length > docnames.length / 2;
    marks = [...parsed[3]].filter(word => !common(word)).flatMap(word => [word, stem(word)]).join(" ");
    return parsed;
  };
  Search.performTermsSearch = (...terms) => [...sections(asked), ...find(...terms)];

  // a result is a section, once; then its page, and how it begins, which the index holds: from disk no page can be read
  const item = ([file, title, anchor, said]) => {
    const make = (name, rest) => Object.assign(document.createElement(name), rest);
    const [page, section] = title.split(" > "), result = make("li");
    const begins = (Search._index.excerpts[file] || {})[anchor.slice(1)];
    result.append(make("a", {innerHTML: section || page, href: file + DOCUMENTATION_OPTIONS.LINK_SUFFIX + anchor}));
    if (section || said) result.append(make("p", {className: "page", innerHTML: section ? page : said}));
    if (begins && !said) result.append(make("p", {className: "context", textContent: begins}));
    return result;
  };
  Search.query = query => {
    const seen = new Set(), results = Search._performSearch(...Search._parseQuery(query)).reverse()
      .filter(([file, , anchor]) => !seen.has(file + anchor) && seen.add(file + anchor));
    Search.output.append(...results.map(item));
    _finishSearch(results.length); // which counts pages
    if (results.length) Search.status.innerText = `${results.length} result${results.length > 1 ? "s" : ""}`;
    (Search.output.querySelector("a") || field).focus();
  };
  ["click", "auxclick"].forEach(kind => document.addEventListener(kind, ({target}) =>
    target.closest("ul.search a") && localStorage.setItem("marks", marks)));
  field.focus(); // until there are results
})();
