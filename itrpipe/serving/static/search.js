"use strict";
// Shows the images that fit a sentence, or are like another one; more of them when the end of the page comes near.

const $ = (id) => document.getElementById(id);
const AT_ONCE = 48;
let asked = null;
let shown = 0;
let loading = false;
let whole = Infinity;

function item(answer) {
  const found = $("answer").content.cloneNode(true);
  const image = found.querySelector("img");
  image.src = `/pictures/320/${encodeURIComponent(answer.image)}`;
  image.alt = answer.captions[0] ?? answer.image;
  if (shown >= AT_ONCE) image.loading = "lazy";
  found.querySelector("a").href = `/?${new URLSearchParams({ like: answer.image })}`;
  found.querySelector("p").textContent = `${answer.score.toFixed(3)} · ${answer.image} · ${answer.split}`;
  const list = found.querySelector("ul");
  for (const text of answer.captions) {
    const line = document.createElement("li");
    line.textContent = text;
    list.append(line);
  }
  if (!answer.captions.length) found.querySelector("details").remove();
  return found;
}

function say(text, failed = false) {
  $("status").className = failed ? "failed" : "";
  $("status").textContent = text;
}

async function more() {
  if (!asked || loading || shown >= whole) return;
  loading = true;
  const mine = asked;
  try {
    const response = await fetch(`/api/search?${new URLSearchParams({ ...mine, start: shown, count: AT_ONCE })}`);
    const found = await response.json();
    if (mine !== asked) return;
    if (!response.ok) throw new Error(found.error);
    whole = found.searched;
    const unknown = found.unknown.length ? `; not known to the model: ${found.unknown.join(", ")}` : "";
    say(`${whole.toLocaleString("en")} images, best first${unknown}`);
    const items = found.answers.map(item);
    shown += items.length;
    $("found").append(...items);
  } catch (error) {
    if (mine !== asked) return;
    whole = 0;
    say(error.message, true);
  } finally {
    loading = false;
    if (mine !== asked) more();
    else if (near()) more();
  }
}

const near = () => $("more").getBoundingClientRect().top < innerHeight + 600;

function ask() {
  const given = new URLSearchParams(location.search);
  const [q, like] = [given.get("q") ?? "", given.get("like") ?? ""];
  document.querySelector("[name=q]").value = q;
  $("found").replaceChildren();
  shown = 0;
  whole = Infinity;
  asked = like ? { like } : q ? { q } : null;
  say(like ? `Images like ${like}` : "");
  more();
}

function go(query) {
  history.pushState(null, "", query ? `/?${new URLSearchParams(query)}` : "/");
  scrollTo(0, 0);
  ask();
}

$("search").addEventListener("submit", (event) => {
  event.preventDefault();
  const q = new FormData(event.target).get("q").trim();
  go(q ? { q } : null);
});
$("found").addEventListener("click", (event) => {
  const link = event.target.closest("a.like");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  go(Object.fromEntries(new URL(link.href).searchParams));
});
addEventListener("popstate", ask);
new IntersectionObserver(more, { rootMargin: "600px" }).observe($("more"));
ask();
