/* The search: pages and headings with all words of the query come first, and among them those that begin with it.
   Sphinx itself counts a word in the title of a page no more than one in any heading of it. */
var Scorer = (() => {
  const split = (text) => text.split(/[^\p{L}\p{N}_]+/u).filter(Boolean);
  const words = (text) => split(text.toLowerCase().replaceAll("mps-trainer", "mps_trainer"));
  const isForm = (word, asked) =>
    word === asked || word.replace(/\d+$/, "") === asked || (asked.length > 5 && word.startsWith(asked.slice(0, 6)));
  const score = ([, title, anchor, , score, , kind]) => {
    const asked = words(new URLSearchParams(window.location.search).get("q") || "");
    const found = words(title.split(" > ").at(-1));
    const hasAll = asked.every((each) => found.some((word) => isForm(word, each)));
    if (kind === "object" || !asked.length || !hasAll) return score;
    const begins = asked.every((each, index) => isForm(found[index] || "", each));
    return score + 30 + (begins ? 20 : 0) + (anchor ? 0 : 10);
  };
  const scores = { title: 15, partialTitle: 7, term: 5, partialTerm: 2, objNameMatch: 11, objPartialMatch: 6 };
  return { ...scores, score, objPrio: { 0: 15, 1: 5, 2: -5 }, objPrioDefault: 0 };
})();
