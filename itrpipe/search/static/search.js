"use strict";
// Shows the images that fit a sentence or a photograph, or are like another one. The grid is in parts: a part that is far
// from what is seen gives its images back, and asks for them again when it comes near.

const $ = (id) => document.getElementById(id);
const AT_ONCE = 60;
const AROUND = "1500px";
const compares = "compares" in $("drop").dataset;
const dropped = new Map(); // key -> address of a photograph that this page has
let asked = null;
let parts = [];
let whole = Infinity;
let back = 0;

const asks = () => Object.values(asked).some(Boolean);
const address = (id, side) => `/pictures/${side}/${encodeURIComponent(id)}`;

function say(text, failed = false) {
  $("status").className = failed ? "failed" : "";
  $("status").textContent = text;
}

async function get(path, query) {
  const answer = await fetch(`${path}?${new URLSearchParams(query)}`);
  const found = await answer.json();
  if (!answer.ok) throw new Error(found.error);
  return found;
}

function item(answer) {
  const found = $("answer").content.cloneNode(true).firstElementChild;
  const image = found.querySelector("img");
  image.src = address(answer.image, 320);
  image.alt = answer.captions[0] ?? answer.image;
  found.querySelector(".large").href = address(answer.image, 1280);
  if (compares) found.querySelector(".like").href = `/?${new URLSearchParams({ like: answer.image })}`;
  else found.querySelector(".like").remove();
  const [first, ...others] = answer.captions;
  if (first) found.querySelector(".first").textContent = first;
  else found.querySelector(".first").remove();
  found.querySelector(".large").title = [asks() && answer.score.toFixed(3), answer.image, answer.split].filter(Boolean).join(" · ");
  const list = found.querySelector("ul");
  for (const text of others) {
    const line = document.createElement("li");
    line.textContent = text;
    list.append(line);
  }
  found.querySelector(".captions summary").textContent = `${others.length} more caption${others.length > 1 ? "s" : ""}`;
  if (!others.length) found.querySelector(".captions").remove();
  return found;
}

async function fill(part) {
  if (part.state !== "empty") return;
  part.state = "asked";
  const mine = asked;
  try {
    const found = await get("/api/search", { ...mine, start: part.start, count: AT_ONCE });
    if (mine !== asked) return;
    whole = found.searched;
    const unknown = found.unknown.length ? `; not known to the model: ${found.unknown.join(", ")}` : "";
    const own = found.captions?.[0] ? ` (“${found.captions[0]}”)` : "";
    const like = mine.like ? ` like ${mine.like}${own}` : mine.photograph ? " like this photograph" : "";
    if (asks()) say(`All ${whole.toLocaleString("en")} images, most${like || " fitting"} first${unknown}`);
    part.node.append(...found.answers.map(item));
    part.node.style.minHeight = "";
    part.state = "full";
    if (back && document.documentElement.scrollHeight > back + innerHeight) {
      scrollTo(0, back);
      back = 0;
    }
    more();
  } catch (error) {
    if (mine !== asked) return;
    clear();
    say(error.message, true);
  }
}

function empty(part) {
  if (part.state !== "full") return;
  part.node.style.minHeight = `${part.node.offsetHeight}px`;
  part.node.replaceChildren();
  part.state = "empty";
}

const near = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    const part = parts[Number(entry.target.dataset.part)];
    if (!part || part.node !== entry.target) continue;
    if (entry.isIntersecting) fill(part);
    else if (!entry.target.contains(document.activeElement)) empty(part);
  }
}, { rootMargin: AROUND });

function more() {
  const start = parts.length * AT_ONCE;
  const far = !back && $("more").getBoundingClientRect().top > innerHeight + 600;
  if (!asked || far || start >= whole || (parts.length && parts.at(-1).state === "asked")) return;
  const node = document.createElement("ol");
  node.className = "found";
  node.start = start + 1;
  node.dataset.part = parts.length;
  const part = { node, start, state: "empty" };
  parts.push(part);
  $("grid").append(node);
  near.observe(node);
  fill(part);
}

function clear() {
  near.disconnect();
  $("grid").replaceChildren();
  $("asked").hidden = true;
  parts = [];
  whole = Infinity;
  asked = null;
}

function ask() {
  const given = new URLSearchParams(location.search);
  const [q, like, photograph] = ["q", "like", "photograph"].map((name) => given.get(name) ?? "");
  document.querySelector("[name=q]").value = q;
  clear();
  back = history.state?.top ?? 0;
  asked = photograph ? { photograph } : like ? { like } : { q };
  const shown = photograph ? dropped.get(photograph) : like && address(like, 320);
  $("asked").hidden = !shown;
  if (shown) $("query").src = shown;
  $("proposals").hidden = asks();
  say(asks() ? "" : `Describe a picture${$("file") ? ", or drop one" : ""}. For example:`);
  more();
}

function go(query) {
  history.replaceState({ top: scrollY }, "");
  history.pushState(null, "", query ? `/?${new URLSearchParams(query)}` : "/");
  scrollTo(0, 0);
  ask();
}

async function upload(file) {
  clear();
  say("The photograph is read …");
  try {
    const answer = await fetch("/api/photographs", { method: "POST", body: file });
    const text = await answer.text();
    if (answer.status === 413) throw new Error("the photograph is too large; give a smaller one");
    const found = JSON.parse(text);
    if (!answer.ok) throw new Error(found.error);
    dropped.set(found.photograph, URL.createObjectURL(file));
    go(found);
  } catch (error) {
    say(error.message, true);
  } finally {
    $("file").value = "";
  }
}

$("search").addEventListener("submit", (event) => {
  event.preventDefault();
  const q = new FormData(event.target).get("q").trim();
  go(q ? { q } : null);
});
if ($("file")) {
  $("file").addEventListener("change", (event) => { if (event.target.files.length) upload(event.target.files[0]); });
  document.addEventListener("dragover", (event) => {
    event.preventDefault();
    $("drop").classList.add("over");
  });
  document.addEventListener("dragleave", (event) => { if (!event.relatedTarget) $("drop").classList.remove("over"); });
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    $("drop").classList.remove("over");
    if (event.dataTransfer.files.length) upload(event.dataTransfer.files[0]);
  });
}
$("grid").addEventListener("click", (event) => {
  const link = event.target.closest("a.like");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  go(Object.fromEntries(new URL(link.href).searchParams));
});
addEventListener("popstate", ask);
history.scrollRestoration = "manual";
for (const event of ["scroll", "resize"]) addEventListener(event, more, { passive: true });
setInterval(more, 500); // when heights change, no event tells that the end has come near
ask();
