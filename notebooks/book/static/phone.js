// A formula in a text does not break. Where it is wider than the text, phone.css gives it a line of
// its own, which scrolls.
window.addEventListener("load", async () => {
  await window.MathJax?.startup.promise; // the index and the search page have no formulas
  const mark = () => {
    for (const formula of document.querySelectorAll(".bd-article span.math")) {
      formula.classList.remove("wide");
      const text = formula.closest("p, li, dd, td, div"); // the cells of a table scroll together
      const inside = formula.firstElementChild?.getBoundingClientRect();
      const beyond = inside && inside.right > text.getBoundingClientRect().right + 1;
      if (beyond && !formula.closest("td")) formula.classList.add("wide");
    }
  };
  mark();
  window.addEventListener("resize", mark);
});
