"use strict";
// Shows the next candidate at once: answers are sent in the order in which they were given, and the pictures of the
// next candidates are fetched before their turn. Nothing is lost when the server is: the answer is sent again.

const $ = (id) => document.getElementById(id);
const KEYS = { y: "fits", n: "differs", s: "unsure", u: "undone" };
const SAID = { fits: "fits", differs: "does not fit", unsure: "unsure" };
const FEW = 8;
const MOST = 20;
const ENOUGH = 20; // pairs that both judged, before which a kappa says nothing
let who = null;
let queue = [];
let past = []; // answers of this reviewer, the latest first
let sending = Promise.resolve();
let waiting = 0;
let asked = null;
let failed = "";
let ended = false;
let held = ""; // the first answer, until its reviewer has a name

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
  const mine = who;
  asked = (async () => {
    await sending;
    const found = await get();
    if (mine !== who) return;
    ended = !found.candidates.length;
    const known = new Set(queue.map((each) => each.place));
    for (const each of found.candidates) {
      if (known.has(each.place)) continue;
      queue.push(each);
      new Image().src = picture(each.image, 1280);
    }
    if (!past.length) past = found.given;
    list();
    tell(found.progress);
  })();
  try { await asked; } finally { asked = null; }
}

function show() {
  const next = queue[0];
  $("work").hidden = !next;
  $("done").hidden = Boolean(next) || !ended;
  if (!next) return;
  $("photo").src = picture(next.image, 1280);
  $("other").src = picture(next.own_image, 320);
  $("caption").textContent = next.caption;
  $("own").replaceChildren(...next.own_captions.map((text) => {
    const item = document.createElement("li");
    item.textContent = text;
    return item;
  }));
  const likely = next.probability === null ? "" : `; the judge takes it for right with a probability of ${(100 * next.probability).toFixed(1)} %`;
  $("facts").textContent = `Rank ${next.rank} of the negatives, with a score of ${next.score.toFixed(3)}${likely}.`;
}

const count = (number) => number.toLocaleString("en");
const percent = (value) => `${(100 * value).toFixed(0)} %`;
const between = (low, high) => `95 % interval ${(100 * low).toFixed(0)} to ${percent(high)}`;

// Heading, figure and explanation of each fact.
function facts(found) {
  const told = [];
  const needed = found.needed !== null && found.decisions < found.needed;
  const enough = needed ? `of ${found.needed} that the judge’s calibration needs` : "pairs, with a clear answer";
  told.push(["Decisions", count(found.decisions), enough]);
  const share = found.share;
  if (share.high - share.low < 1) {
    told.push(["Right after all", percent(share.value), `of the ${count(found.pairs)} hardest, by ${count(share.decisions)} drawn at random; ${between(share.low, share.high)}`]);
  }
  const judge = found.judge;
  if (judge) {
    if (judge.auc) told.push(["The judge’s AUC", judge.auc.value.toFixed(2), `.5 is guessing; 95 % interval ${judge.auc.low.toFixed(2)} to ${judge.auc.high.toFixed(2)}`]);
    if (judge.knows && judge.precision !== null) told.push(["Above .5 the judge is right in", percent(judge.precision), `of ${count(judge.likely)}, and finds ${percent(judge.recall)} of the right answers`]);
    if (!judge.knows) told.push(["The judge", "marks nothing", "as long as the answers do not show that it knows anything"]);
  }
  for (const each of found.agreements) {
    const kappa = each.kappa === null || each.pairs < ENOUGH ? "" : `, Cohen’s kappa ${each.kappa.toFixed(2)}`;
    told.push([`As ${each.with} answered`, percent(each.same), `of ${count(each.pairs)}${kappa}`]);
  }
  return told;
}

function tell(progress) {
  $("progress").className = "";
  const right = progress.share.high - progress.share.low < 1 ? `; ${percent(progress.share.value)} right after all (${between(progress.share.low, progress.share.high)})` : "";
  $("progress").textContent = `${count(progress.judged)} of ${count(progress.pairs)} judged${who.reviewer && ` by ${who.reviewer}`}${right}`;
  $("findings").replaceChildren(...facts(progress).map(([heading, figure, explanation]) => {
    const item = $("finding").content.cloneNode(true).firstElementChild;
    item.querySelector("dt").textContent = heading;
    item.querySelector("strong").textContent = figure;
    item.querySelector("span").textContent = explanation;
    return item;
  }));
}

function warn() {
  $("progress").className = "failed";
  $("progress").textContent = `${waiting} answer${waiting > 1 ? "s are" : " is"} not saved yet: ${failed}; trying again`;
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
      failed = "";
      return found;
    } catch (error) {
      failed = error.message;
      warn();
      await new Promise((resolve) => setTimeout(resolve, pause));
    }
  }
}

function send(answer) {
  waiting += 1;
  if (failed) warn();
  const mine = who;
  sending = sending.then(() => post(answer)).then((found) => {
    waiting -= 1;
    if (!waiting && mine === who) tell(found);
    return found;
  });
  return sending;
}

// The last answers, each of which can be given again.
function list() {
  $("given").replaceChildren(...past.slice(0, MOST).map((each) => {
    const item = $("answered").content.cloneNode(true).firstElementChild;
    item.querySelector("img").src = picture(each.image, 320);
    item.querySelector("p").textContent = `${SAID[each.answer]}: ${each.caption}`;
    item.querySelector("button").addEventListener("click", () => again(each));
    return item;
  }));
}

function again(pair) {
  past = past.filter((each) => each.place !== pair.place);
  queue = [pair, ...queue.filter((each) => each.place !== pair.place)];
  list();
  show();
  scrollTo(0, 0);
}

async function undo() {
  const mine = who;
  if (!past.length) await fill();
  const last = past[0];
  if (!last || mine !== who) return;
  again(last);
  send({ ...who, place: last.place, answer: "undone" });
}

function judge(answer) {
  if (!who.reviewer) {
    held = answer;
    $("setup").open = true;
    $("name").focus();
    return;
  }
  if (answer === "undone") {
    undo();
    return;
  }
  const current = queue.shift();
  if (!current) return;
  past.unshift({ ...current, answer });
  send({ ...who, place: current.place, answer });
  if (queue.length < FEW) fill().then(() => { if ($("work").hidden) show(); }, () => {}); // the next answer asks again
  list();
  show();
}

// Shows the first candidates; an answer that waited for a name is given for the pair that it was meant for.
async function begin(answer = "") {
  const form = new FormData($("who"));
  const name = form.get("reviewer").trim();
  const known = [...$("reviewers").options].find((each) => each.value.toLowerCase() === name.toLowerCase());
  const meant = queue[0];
  who = { reviewer: known ? known.value : name, order: form.get("order") };
  const mine = who;
  queue = [];
  past = [];
  held = "";
  $("problem").hidden = true;
  try {
    await asked;
    await fill();
    if (mine !== who) return;
    localStorage.setItem("reviewer", who.reviewer);
    sessionStorage.setItem("order", who.order);
    if (answer && meant && who.reviewer) {
      queue = [meant, ...queue.filter((each) => each.place !== meant.place)];
      judge(answer);
    } else show();
    document.activeElement.blur();
    $("setup").open = false;
  } catch (error) {
    who = { ...who, reviewer: "" };
    queue = meant ? [meant] : [];
    held = answer;
    $("setup").open = true;
    $("problem").hidden = false;
    $("problem").textContent = error.message;
  }
}

$("who").addEventListener("submit", (event) => {
  event.preventDefault();
  begin(held);
});
$("order").addEventListener("change", () => begin());
$("answers").addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (!button || event.detail > 1) return;
  if (event.detail) button.blur();
  judge(button.dataset.answer);
});
document.addEventListener("keydown", (event) => {
  const typing = event.target.matches("input, select, textarea");
  if (typing || event.ctrlKey || event.metaKey || event.altKey || event.repeat) return;
  // Of a keyboard with other letters, the key that is in the place of this one.
  const letter = /^[a-z]$/i.test(event.key) ? event.key : event.code.replace(/^Key/, "");
  const answer = KEYS[letter.toLowerCase()];
  if (!answer) return;
  event.preventDefault();
  judge(answer);
});
// Another tab of the same reviewer may have judged what this one has in its queue.
document.addEventListener("visibilitychange", async () => {
  if (document.hidden) return;
  const mine = who;
  await sending;
  queue = [];
  past = [];
  await asked;
  await fill();
  if (mine === who) show();
});
window.addEventListener("beforeunload", (event) => { if (waiting) event.preventDefault(); });
$("name").value = localStorage.getItem("reviewer") ?? "";
const before = sessionStorage.getItem("order");
if (before && document.querySelector(`option[value="${CSS.escape(before)}"]`)) $("order").value = before;
begin();
