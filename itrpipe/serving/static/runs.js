"use strict";
// Draws the curves of some trainings, and draws them again every few seconds while one is at work.

const $ = (id) => document.getElementById(id);
const SHOWN = 6;
const PAUSE = 5000;
const [WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM] = [560, 300, 52, 168, 12, 30];
let chosen = null;
let runs = [];

function svg(name, attributes, text) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  return node;
}

function ticks(low, high) {
  const rough = (high - low || Math.abs(high) || 1) / 4;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough);
  const found = [];
  for (let value = Math.ceil(low / step) * step; value <= high + step / 1e6; value += step) found.push(value);
  return found;
}

const short = (value) => Number(value.toPrecision(6)).toLocaleString("en");

function chart(metric, shown) {
  const place = $(metric);
  const lines = shown.map((run) => ({ run, points: run.rows.filter((row) => Number.isFinite(row[metric])) }))
    .filter((line) => line.points.length);
  place.replaceChildren();
  if (!lines.length) {
    place.append(svg("text", { class: "tick", x: LEFT, y: HEIGHT / 2 }, "No training is chosen, or none has validated yet."));
    return;
  }
  const all = lines.flatMap((line) => line.points);
  const last = Math.max(...all.map((row) => row.epoch));
  const [low, high] = [Math.min(...all.map((row) => row[metric])), Math.max(...all.map((row) => row[metric]))];
  const x = (epoch) => LEFT + ((WIDTH - LEFT - RIGHT) * epoch) / (last || 1);
  const y = (value) => HEIGHT - BOTTOM - ((HEIGHT - TOP - BOTTOM) * (value - low)) / (high - low || 1);
  for (const value of ticks(low, high)) {
    place.append(svg("line", { class: "rule", x1: LEFT, x2: WIDTH - RIGHT, y1: y(value), y2: y(value) }));
    place.append(svg("text", { class: "tick", x: LEFT - 8, y: y(value) + 4, "text-anchor": "end" }, short(value)));
  }
  for (const epoch of ticks(0, last)) {
    place.append(svg("text", { class: "tick", x: x(epoch), y: HEIGHT - 10, "text-anchor": "middle" }, short(epoch)));
  }
  place.append(svg("text", { class: "tick", x: WIDTH - RIGHT + 8, y: HEIGHT - 10 }, "epochs"));
  const labels = [];
  for (const { run, points } of lines) {
    const series = `series-${(shown.indexOf(run) % 6) + 1}`;
    const path = points.map((row) => `${x(row.epoch)},${y(row[metric])}`).join(" ");
    place.append(svg("polyline", { class: `line ${series}`, points: path }));
    for (const row of points) place.append(svg("circle", { class: `dot ${series}`, cx: x(row.epoch), cy: y(row[metric]), r: 2.5 }));
    labels.push({ series, name: run.name, x: x(points.at(-1).epoch) + 8, y: y(points.at(-1)[metric]) + 4 });
  }
  labels.sort((one, other) => one.y - other.y);
  labels.forEach((label, rank) => {
    if (rank) label.y = Math.max(label.y, labels[rank - 1].y + 14);
    const name = label.name.replace(/-[0-9a-f]{8}$/, "");
    const text = svg("text", { class: `label ${label.series}`, x: label.x, y: label.y }, name.length > 24 ? `${name.slice(0, 23)}…` : name);
    text.append(svg("title", {}, label.name));
    place.append(text);
  });
}

function row(run) {
  const found = document.createElement("tr");
  const box = document.createElement("input");
  box.type = "checkbox";
  box.checked = chosen.has(run.name);
  box.addEventListener("change", () => {
    if (box.checked) chosen.add(run.name);
    else chosen.delete(run.name);
    draw();
  });
  const label = document.createElement("label");
  label.append(box, ` ${run.name}`);
  const head = document.createElement("th");
  head.scope = "row";
  head.append(label);
  const last = run.rows.at(-1);
  const best = Math.max(...run.rows.map((each) => each.val_rsum));
  const cells = [run.problem || run.state, last ? short(last.epoch) : "", last ? last.loss.toFixed(4) : "", last ? best.toFixed(1) : ""];
  found.append(head, ...cells.map((text) => {
    const cell = document.createElement("td");
    cell.textContent = text;
    return cell;
  }));
  return found;
}

function draw() {
  const shown = runs.filter((run) => chosen.has(run.name));
  for (const metric of ["val_rsum", "loss"]) chart(metric, shown);
}

async function update() {
  try {
    const answer = await fetch("/api/runs");
    const found = await answer.json();
    if (!answer.ok) throw new Error(found.error);
    const before = JSON.stringify(runs);
    runs = found.runs;
    chosen ??= new Set(runs.filter((run) => run.rows.length).slice(0, SHOWN).map((run) => run.name));
    for (const run of runs) if (run.state === "running") chosen.add(run.name);
    const working = runs.filter((run) => run.state === "running").length;
    $("status").textContent = runs.length
      ? `${runs.length} training${runs.length > 1 ? "s" : ""}, ${working ? `${working} at work; curves follow while they train` : "none at work"}`
      : "No training yet.";
    if (before !== JSON.stringify(runs)) {
      $("runs").tBodies[0].replaceChildren(...runs.map(row));
      draw();
    }
  } catch (error) {
    $("status").textContent = `The server does not answer: ${error.message}`;
  }
  setTimeout(update, PAUSE);
}

update();
