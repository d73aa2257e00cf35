"use strict";
// Shows the images that are nearest to each other; comparing all of them takes a while where there are many.

function figure(image, split) {
  const found = document.createElement("figure");
  const link = document.createElement("a");
  link.href = `/?${new URLSearchParams({ like: image })}`;
  const picture = new Image(160, 120);
  picture.loading = "lazy";
  picture.src = `/pictures/320/${encodeURIComponent(image)}`;
  picture.alt = image;
  link.append(picture);
  const caption = document.createElement("figcaption");
  caption.textContent = `${image} · ${split}`;
  found.append(link, caption);
  return found;
}

async function alike() {
  const status = document.getElementById("alike-status");
  if (!status) return;
  const answer = await fetch("/api/alike");
  const found = await answer.json();
  if (!answer.ok) {
    status.textContent = found.error;
    return;
  }
  status.textContent = "The pairs whose embeddings are nearest, nearest first. Look which of them are the same picture: across splits, that is a leak.";
  for (const kind of ["across", "within"]) {
    const place = document.getElementById(kind);
    place.previousElementSibling.hidden = !found[kind].length;
    for (const pair of found[kind]) {
      const row = document.createElement("div");
      row.className = "pair";
      const score = document.createElement("p");
      score.className = "note";
      score.textContent = pair.score.toFixed(3);
      row.append(...pair.images.map((image, side) => figure(image, pair.splits[side])), score);
      place.append(row);
    }
  }
}

alike();
