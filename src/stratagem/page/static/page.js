// Light or dark, forms that send themselves, numbers that follow the run, films with keys, cross-hairs on charts.
// Everything is readable without this file.
"use strict";

const kept = (name, value) => {
  try {
    if (value !== undefined) localStorage.setItem(name, value);
    return localStorage.getItem(name);
  } catch { return null; }
};

// ---- light or dark
const theme = kept("stratagem-theme");
if (theme) document.documentElement.dataset.theme = theme;
const turn = () => {
  const now = document.documentElement.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  document.documentElement.dataset.theme = kept("stratagem-theme", now === "dark" ? "light" : "dark") || (now === "dark" ? "light" : "dark");
};
document.getElementById("theme").addEventListener("click", turn);

// ---- forms: what was chosen goes into the address, so that a view can be passed on and survives a reload
document.addEventListener("change", event => {
  const form = event.target.form;
  if (!form || !("auto" in form.dataset)) return;
  form.action = location.pathname + location.hash;  // the step that is shown stays
  form.requestSubmit();
});

// ---- live: when something was written, the parts marked data-live are fetched again
const stampUrl = document.body.dataset.stamp;
let stamp = document.body.dataset.now;  // of what this page was made from
async function renew() {
  const answer = await fetch(location.href, { headers: { Accept: "text/html", "X-Again": "1" } });
  if (!answer.ok) return;
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
  for (const part of document.querySelectorAll("[data-live]")) {
    const next = fresh.querySelector(`[data-live="${part.dataset.live}"]`);
    if (!next) continue;
    const open = [...part.querySelectorAll("details")].map(item => item.open);
    const boxes = new Map([...part.querySelectorAll("input[type=checkbox]")].map(item => [item.value, item.checked]));
    const focus = part.contains(document.activeElement) ? document.activeElement : null;
    const address = focus && focus.getAttribute("href");
    next.querySelectorAll("details").forEach((item, place) => { item.open = Boolean(open[place]); });
    next.querySelectorAll("input[type=checkbox]").forEach(item => { if (boxes.has(item.value)) item.checked = boxes.get(item.value); });
    part.replaceChildren(...next.childNodes);
    if ("pending" in next.dataset) part.dataset.pending = ""; else delete part.dataset.pending;
    if (address) [...part.querySelectorAll("a")].find(item => item.getAttribute("href") === address)?.focus();
  }
}
let rest = 0;  // until when nothing is fetched again: an open page takes about a hundredth of the time of training
async function follow() {
  let wait = 5000;
  if (!document.hidden) {
    try {
      const answer = await fetch(stampUrl);
      const found = answer.ok ? await answer.text() : stamp;
      const pending = document.querySelector("[data-pending]");
      if (pending || (found !== stamp && performance.now() >= rest)) {
        const start = performance.now();
        await renew();
        rest = performance.now() + Math.min(10000, 100 * (performance.now() - start));
        stamp = found;
      }
      if (pending) wait = 300;
      document.getElementById("live").hidden = !answer.ok || !found.includes("training");
    } catch { document.getElementById("live").hidden = true; }
  }
  setTimeout(follow, wait);
}
if (stampUrl) setTimeout(follow, 200);

// ---- films
const film = document.getElementById("film");
if (film) {
  const count = Number(film.dataset.steps);
  const together = "together" in film.dataset;
  const steps = [...film.querySelectorAll(".step")];
  const links = [...film.querySelectorAll(".strip ol a")];
  const cards = [...film.querySelectorAll(".cards > article")].map(card => [[...card.querySelectorAll(".frame")], [...card.querySelectorAll(".actions li")]]);
  const at = document.getElementById("at");
  const play = film.querySelector("[data-go=play]");
  let now = 0, timer = null;
  const show = place => {
    now = Math.max(0, Math.min(count - 1, place));
    at.textContent = `${now + 1} of ${count}`;
    for (const group of cards) for (const items of group) {
      const here = Math.min(now, items.length - 1);
      items.forEach((item, index) => item.classList.toggle("now", index === here));
    }
    steps.forEach((item, index) => item.classList.toggle("now", index === now));
    links.forEach((item, index) => index === now ? item.setAttribute("aria-current", "step") : item.removeAttribute("aria-current"));
    if (!together) history.replaceState(null, "", `#step-${now + 1}`);
  };
  const stop = () => { clearInterval(timer); timer = null; play.textContent = "\u25B6"; play.setAttribute("aria-label", "Play"); };
  const go = {
    first: () => show(0), back: () => show(now - 1), on: () => show(now + 1), last: () => show(count - 1),
    play: () => {
      if (timer) return stop();
      if (now === count - 1) show(0);
      play.textContent = "\u275A\u275A"; play.setAttribute("aria-label", "Pause");
      timer = setInterval(() => now < count - 1 ? show(now + 1) : stop(), 600);
    },
  };
  film.addEventListener("click", event => {
    const button = event.target.closest("[data-go]");
    if (button) { if (button.dataset.go !== "play") stop(); go[button.dataset.go](); return; }
    const link = event.target.closest(".strip ol a");
    if (link) { event.preventDefault(); stop(); show(links.indexOf(link)); }
  });
  film.addEventListener("toggle", event => {
    const same = event.target.dataset && event.target.dataset.same;
    if (same) film.querySelectorAll(`details[data-same=${same}]`).forEach(item => { item.open = event.target.open; });
  }, true);
  const keys = { ArrowLeft: "back", ArrowRight: "on", Home: "first", End: "last", " ": "play" };
  document.addEventListener("keydown", event => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea")) return;
    if (event.key === " " && event.target.closest("button, summary, a")) return;
    const name = keys[event.key];
    if (name) { event.preventDefault(); if (name !== "play") stop(); go[name](); }
    if (event.key === "o") { const prompt = film.querySelector(".step.now details[data-same=prompt]"); if (prompt) prompt.open = !prompt.open; }
    if (event.key === "p" || event.key === "n") film.querySelector(`[data-key=${event.key}]`)?.click();
  });
  film.classList.add("on");
  const asked = Number((location.hash.match(/^#step-(\d+)$/) || [])[1] || 1);
  steps.forEach(item => item.removeAttribute("id"));  // the address names a step; the page must not jump to it
  if (count) show(asked - 1);
  if (location.hash) addEventListener("load", () => scrollTo(0, 0));
}
document.addEventListener("keydown", event => {
  if (event.key === "t" && !event.ctrlKey && !event.metaKey && !event.altKey && !event.target.closest("input, select, textarea")) turn();
});

// ---- cross-hairs
const box = document.createElement("div");
box.className = "tip-box";
box.hidden = true;
document.body.append(box);
let hovered = null;
const leave = () => { box.hidden = true; hovered?.querySelector(".cross")?.remove(); hovered = null; };
const text = (value, percent) => value === null ? "-" : percent ? (100 * value).toFixed(1) + "%" : Math.abs(value) >= 1000 || !value ? String(value) : Number(value.toPrecision(4)).toString();
document.addEventListener("pointermove", event => {
  const chart = event.target.closest?.("svg[data-chart]");
  if (chart !== hovered) leave();
  if (!chart) return;
  hovered = chart;
  const data = chart.chartData ||= JSON.parse(chart.dataset.chart);
  const [left, right, width, low, high] = chart.dataset.plane.split(",").map(Number);
  const area = chart.getBoundingClientRect();
  const x = low + ((event.clientX - area.left) / area.width * width - left) / (width - left - right) * (high - low);
  let nearest = null;
  for (const [, , xs] of data.s) for (const value of xs) if (nearest === null || Math.abs(value - x) < Math.abs(nearest - x)) nearest = value;
  if (nearest === null) return;
  const title = document.createElement("b");
  title.textContent = `iteration ${nearest}`;
  const lines = data.s.filter(([, , xs]) => xs.includes(nearest)).slice(0, 12).map(([label, , xs, ys]) => {
    const line = document.createElement("div");
    line.textContent = `${label}: ${text(ys[xs.indexOf(nearest)], data.f)}`;
    return line;
  });
  box.replaceChildren(title, ...lines);
  box.hidden = false;
  const place = left + (nearest - low) / ((high - low) || 1) * (width - left - right);
  let cross = chart.querySelector(".cross");
  if (!cross) { cross = document.createElementNS("http://www.w3.org/2000/svg", "line"); cross.setAttribute("class", "cross"); cross.setAttribute("y1", 8); cross.setAttribute("y2", 168); chart.append(cross); }
  cross.setAttribute("x1", place); cross.setAttribute("x2", place);
  const beside = event.pageX + 14 + box.offsetWidth > document.documentElement.clientWidth ? event.pageX - box.offsetWidth - 14 : event.pageX + 14;
  box.style.left = `${Math.max(4, beside)}px`;
  box.style.top = `${event.pageY + 14}px`;
});
document.addEventListener("pointerleave", leave);
document.addEventListener("keydown", event => { if (event.key === "Escape") leave(); });
