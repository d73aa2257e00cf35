"use strict";
// Shows the next candidate at once: answers are sent in the order in which they were given, and the pictures of the
// next candidates are fetched before their turn. Nothing is lost when the server is: the answer is sent again.

const $ = (id) => document.getElementById(id);
const KEYS = { y: "fits", n: "differs", s: "unsure", u: "undone" };
const FEW = 8;
let who = null;
let queue = [];
let given = [];
let sending = Promise.resolve();
let waiting = 0;
let asked = null;

const picture = (id, side) => `/pictures/${side}/${encodeURIComponent(id)}`;

async function get() {
  const query = new URLSearchParams(who);
  const answer = await fetch(`/api/review?${query}`);
  const found = await answer.json();
  if (!answer.ok) throw new Error(found.error);
  return found;
}

async function fill() {
  if (asked) return asked;
  asked = (async () => {
    await sending;
    const found = await get();
    const known = new Set(queue.map((each) => each.place));
    for (const each of found.candidates) {
      if (known.has(each.place)) continue;
      queue.push(each);
      new Image().src = picture(each.image, 1280);
    }
    tell(found.progress);
  })();
  try { await asked; } finally { asked = null; }
}

function show() {
  const next = queue[0];
  $("work").hidden = !next;
  $("done").hidden = Boolean(next);
  if (!next) return;
  $("photo").src = picture(next.image, 1280);
  $("other").src = picture(next.own_image, 320);
  $("caption").textContent = next.caption;
  $("own").replaceChildren(...next.own_captions.map((text) => {
    const item = document.createElement("li");
    item.textContent = text;
    return item;
  }));
  const likely = next.probability === null ? "" : `, probability of fitting ${(100 * next.probability).toFixed(0)} %`;
  $("facts").textContent = `rank ${next.rank}, score ${next.score.toFixed(3)}${likely}`;
}

function tell(progress) {
  const parts = [`${progress.judged.toLocaleString("en")} judged by you, ${progress.pairs.toLocaleString("en")} in this order`];
  const share = progress.share;
  const percent = (value) => (100 * value).toFixed(1);
  if (share && share.value !== null) {
    parts.push(`false negatives: ${percent(share.value)} % (${percent(share.low)} to ${percent(share.high)})`);
  }
  for (const each of progress.agreements) {
    const kappa = each.kappa === null ? "" : `, Cohen’s kappa ${each.kappa.toFixed(2)}`;
    parts.push(`${each.with}: the same on ${(100 * each.same).toFixed(0)} % of ${each.pairs}${kappa}`);
  }
  $("progress").className = "";
  $("progress").textContent = parts.join(" · ");
}

async function post(answer) {
  for (let pause = 500; ; pause = Math.min(2 * pause, 8000)) {
    try {
      const response = await fetch("/api/review", {
        method: "POST",
        headers: { "Content-Type": "application/json" },
        body: JSON.stringify(answer),
      });
      const found = await response.json();
      if (!response.ok) throw new TypeError(found.error);
      return found;
    } catch (error) {
      $("progress").className = "failed";
      $("progress").textContent = `${waiting} answers are not saved yet: ${error.message}; trying again`;
      await new Promise((resolve) => setTimeout(resolve, pause));
    }
  }
}

function send(answer) {
  waiting += 1;
  sending = sending.then(() => post(answer)).then((found) => {
    waiting -= 1;
    if (!waiting) tell(found);
  });
}

function judge(answer) {
  if (!who) return;
  if (answer === "undone") {
    const last = given.pop();
    if (!last) return;
    queue.unshift(last);
    send({ ...who, place: last.place, answer });
  } else {
    const current = queue.shift();
    if (!current) return;
    given.push(current);
    send({ ...who, place: current.place, answer });
    if (queue.length < FEW) fill().then(() => { if ($("work").hidden) show(); });
  }
  show();
}

$("who").addEventListener("submit", async (event) => {
  event.preventDefault();
  const form = new FormData(event.target);
  who = { reviewer: form.get("reviewer").trim(), order: form.get("order") };
  localStorage.setItem("reviewer", who.reviewer);
  queue = [];
  given = [];
  try {
    await fill();
    show();
    document.activeElement.blur();
    $("setup").open = false;
  } catch (error) {
    $("progress").className = "failed";
    $("progress").textContent = error.message;
  }
});
$("answers").addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (button) judge(button.dataset.answer);
});
document.addEventListener("keydown", (event) => {
  const typing = event.target.matches("input, select, textarea");
  if (typing || event.ctrlKey || event.metaKey || event.altKey || event.repeat) return;
  const answer = KEYS[event.key.toLowerCase()];
  if (!answer) return;
  event.preventDefault();
  judge(answer);
});
window.addEventListener("beforeunload", (event) => { if (waiting) event.preventDefault(); });
document.querySelector("[name=reviewer]").value = localStorage.getItem("reviewer") ?? "";
