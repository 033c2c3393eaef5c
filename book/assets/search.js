// Sphinx's search finds pages that hold every word. Readers ask in their own words, and want the
// section: so each heading that shares some of them is a result, the rarer the words the better.
Object.assign(Scorer, {objNameMatch: 80, term: 48, title: 50}); // after the headings that fit: exact names, then pages
if (location.protocol === "file:") DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false; // no page can be read from disk
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
    const holding = word => [terms[stem(word)], titleterms[stem(word)]].flat().filter(file => file !== undefined);
    const asked = split(query).map(word => {
      const often = all.filter(one => one.words.has(whole(word))).length, files = holding(word);
      return {word, files, worth: often || files.length || parts(word).length ? Math.log(1 + all.length / (often || 1)) : 0};
    });
    const total = asked.reduce((sum, {worth}) => sum + worth, 0);
    const found = all.map(one => {
      const fit = ({word, files}) => {
        if (one.words.has(whole(word))) return 1;
        const near = parts(word), there = near.filter(part => one.words.has(part)).length / (near.length || 1);
        return 0.3 * there + Math.max(one.page.has(whole(word)) ? 0.5 : 0, files.includes(one.file) ? 0.4 : 0);
      };
      const named = asked.some(({word}) => [whole(word), ...parts(word)].some(key => one.words.has(key)));
      const score = named ? asked.reduce((sum, each) => sum + each.worth * fit(each), 0) / total : 0;
      const chapter = /^<span/.test(titles[one.file]); // its title begins with its number
      return {...one, score: 100 * score + chapter + 1 / one.words.size}; // of two alike, the chapter, then the shorter
    });
    const best = Math.max(...found.map(one => one.score));
    return found.filter(one => one.score > Math.max(20, best * 2 / 3)).map(({title, file, id, score}) =>
      [docnames[file], id === null ? titles[file] : `${titles[file]} > ${title}`, id === null ? "" : "#" + id, null, score, filenames[file]]);
  };

  const parse = Search._parseQuery, find = Search.performTermsSearch;
  let asked;
  Search._parseQuery = query => {
    const parsed = parse(asked = query);
    // a letter is no part of a name, nor marked in every word of a summary
    parsed.slice(3).forEach(terms => terms.forEach(term => term.length < 3 && terms.delete(term)));
    return parsed;
  };
  Search.performTermsSearch = (...terms) => [...sections(asked), ...find(...terms)];
})();
