// Keyboards reach what scrolls, and the search has a name; the theme leaves out both.
document.addEventListener("DOMContentLoaded", () => setTimeout(() => {
  document.querySelectorAll("pre > code, .md-typeset__scrollwrap, .equation").forEach((each) => (each.tabIndex = 0));
  document.querySelectorAll(".md-code__nav").forEach((each) => each.setAttribute("role", "presentation"));
  document.querySelector(".md-search")?.setAttribute("aria-label", "Search");
}));
