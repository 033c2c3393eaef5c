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
  addEventListener("load", () => all("button.copybtn", (button, i) => button.setAttribute("aria-label", `Copy block ${i + 1}`)));
  // a formula that scrolls can be reached by the keyboard
  const reach = () => all(".bd-article div.math", formula => {
    const scrolls = formula.scrollWidth > formula.clientWidth;
    ["tabindex", "role", "aria-label"].forEach((key, i) =>
      scrolls ? formula.setAttribute(key, ["0", "group", "formula"][i]) : formula.removeAttribute(key));
  });
  addEventListener("resize", reach);
  addEventListener("load", () => document.fonts.ready.then(reach));
  // what a search has found is marked in the text of the page to which it led, and in nothing else; a button hides it
  const words = localStorage.getItem("marks"), article = document.querySelector("article"), {highlights} = CSS;
  localStorage.removeItem("marks");
  const mark = () => {
    const sought = new RegExp(`(?<![\\p{L}\\p{N}])(?:${words.replaceAll(" ", "|")})[\\p{L}\\p{N}]*`, "giu"), found = new Highlight();
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
  if (words && article && highlights) addEventListener("load", mark);
  // on paper the page is light
  const root = document.documentElement;
  let scheme;
  addEventListener("beforeprint", () => { scheme = root.dataset.theme; root.dataset.theme = "light"; });
  addEventListener("afterprint", () => { root.dataset.theme = scheme; });
})();
