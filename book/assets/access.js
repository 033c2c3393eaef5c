// What only the page as it is shown can know: which formulas scroll, which colour scheme is on, what was searched.
"use strict";
(() => {
  const all = (which, change) => document.querySelectorAll(which).forEach(change);
  // the sidebar is a landmark, with a name
  all("#pst-primary-sidebar", sidebar => {
    sidebar.setAttribute("role", "complementary");
    sidebar.setAttribute("aria-label", "Contents of the book");
  });
  // a button is called what it says, and its pictures are silent
  all(".search-button-field", button => button.removeAttribute("aria-label"));
  all(".theme-switch", picture => { picture.removeAttribute("title"); picture.setAttribute("aria-hidden", "true"); });
  all(".theme-switch-button", button => button.removeAttribute("data-bs-toggle")); // or it would say one thing for ever
  const name = () => all(".theme-switch-button", button => {
    const {mode, theme} = document.documentElement.dataset;
    const said = `Colours: ${["light", "dark"].includes(mode) ? mode : `as the system has it, now ${theme}`}`;
    ["title", "aria-label"].forEach(key => button.setAttribute(key, said));
  });
  new MutationObserver(name).observe(document.documentElement, {attributeFilter: ["data-mode", "data-theme"]});
  name();
  // the theme takes the focus from a button that is pressed; who pressed it by the keyboard needs it there
  all(".theme-switch-button, .search-button, .primary-toggle, .secondary-toggle", button => {
    button.blur = () => button.matches(":focus-visible") || HTMLElement.prototype.blur.call(button);
  });
  // contents that lie over the page go away when an entry is chosen
  all("#pst-primary-sidebar-modal, #pst-secondary-sidebar-modal", dialog => dialog.addEventListener("click", event => {
    if (event.target.closest("a[href]")) dialog.close();
  }));
  addEventListener("load", () => all("button.copybtn", (button, i) => button.setAttribute("aria-label", `Copy block ${i + 1}`)));
  // a formula that scrolls can be reached by the keyboard
  const reach = () => all(".bd-article div.math", formula => {
    const scrolls = formula.scrollWidth > formula.clientWidth;
    ["tabindex", "role", "aria-label"].forEach((key, i) =>
      scrolls ? formula.setAttribute(key, ["0", "group", "formula"][i]) : formula.removeAttribute(key));
  });
  addEventListener("resize", reach);
  addEventListener("load", () => document.fonts.ready.then(reach));
  // what is typed is looked up at once, by the scripts of the search page, which are fetched when the dialog opens
  const root = document.documentElement, SHOWN = 8;
  all("#pst-search-dialog", dialog => {
    if (document.getElementById("search-results")) return; // which has a field of its own
    dialog.insertAdjacentHTML("beforeend",
      '<section id="search-results" class="bd-search-container empty"><p role="status"></p><ul class="search"></ul></section>');
    const [field, status, list] = ["input", "[role=status]", "ul"].map(which => dialog.querySelector(which));
    let typed = "", waiting, fetched;
    const fetch = source => new Promise(done => document.head.append(Object.assign(document.createElement("script"), {
      src: root.dataset.content_root + source,
      onload: () => { field.value = typed; done(); }, // the first of them empties it
    })));
    const scripts = () => fetched ??= ["_static/searchtools.js", "_static/language_data.js", "searchindex.js"]
      .reduce((before, source) => before.then(() => fetch(source)), Promise.resolve());
    const show = () => scripts().then(() => {
      const found = typed.trim() ? Search.list(typed) : [];
      const links = list.getElementsByTagName("a"), at = [...links].indexOf(document.activeElement);
      list.replaceChildren(...found.slice(0, SHOWN));
      if (at >= 0) (links[at] || field).focus(); // who was already among the results stays there
      const counted = `${found.length || "no"} result${found.length === 1 ? "" : "s"}`;
      status.textContent = !typed.trim() ? "" : found.length > SHOWN ? `${SHOWN} of ${counted}: Enter shows all` : counted;
    });
    field.addEventListener("focus", scripts);
    field.addEventListener("input", () => {
      typed = field.value;
      list.parentElement.classList.toggle("empty", !typed.trim());
      clearTimeout(waiting);
      waiting = setTimeout(show, 150);
    });
    dialog.addEventListener("keydown", event => {
      if (event.key === "Escape") dialog.close(); // from a result, too
      const places = [field, ...list.querySelectorAll("a")], step = {ArrowDown: 1, ArrowUp: -1}[event.key];
      const next = step && places[places.indexOf(document.activeElement) + step];
      if (next) { event.preventDefault(); next.focus(); }
    });
    list.addEventListener("click", ({target}) => {
      if (target.closest("a")?.pathname !== location.pathname) return;
      dialog.close();
      mark(Search.marks);
    });
  });
  // what a search has found is marked in the text of the page to which it led, and in nothing else; a button hides it
  const article = document.querySelector("article"), {highlights} = CSS;
  const mark = said => {
    const words = said?.match(/[\p{L}\p{N}_]+/gu); // whatever an address may say
    all("button.marks", button => button.remove());
    if (!words || !article || !highlights) return;
    const sought = new RegExp(`(?<![\\p{L}\\p{N}])(?:${words.join("|")})[\\p{L}\\p{N}]*`, "giu"), found = new Highlight();
    const texts = document.createTreeWalker(article, NodeFilter.SHOW_TEXT);
    for (let text = texts.nextNode(); text; text = texts.nextNode()) {
      if (text.parentElement.closest(".live, .math, summary, button")) continue;
      for (const {0: word, index} of text.data.matchAll(sought)) {
        const range = new Range();
        range.setStart(text, index);
        range.setEnd(text, index + word.length);
        found.add(range);
      }
    }
    const button = Object.assign(document.createElement("button"), {className: "btn btn-sm marks"});
    const show = shown => {
      shown ? highlights.set("found", found) : highlights.delete("found");
      button.textContent = `${shown ? "Hide" : "Show"} matches`;
    };
    button.addEventListener("click", () => show(!highlights.has("found")));
    if (found.size) document.querySelector(".article-header-buttons").prepend(button);
    show(found.size > 0);
  };
  addEventListener("load", () => mark(new URLSearchParams(location.search).get("marks")));
  // on paper the page is light
  let scheme;
  addEventListener("beforeprint", () => { scheme = root.dataset.theme; root.dataset.theme = "light"; });
  addEventListener("afterprint", () => { root.dataset.theme = scheme; });
})();
