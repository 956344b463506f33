// Search and filters on the index, copy buttons on code. Without this file every page still reads in full.
"use strict";

document.documentElement.classList.add("scripted");

const filters = document.querySelector("#filters");
if (filters) {
  const cards = [...document.querySelectorAll("[data-entry]")];
  const count = document.querySelector("#count");
  const nothing = document.querySelector("#nothing");

  const apply = () => {
    const words = filters.elements.search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const { family, mechanism, tier } = filters.elements;
    let shown = 0;
    for (const card of cards) {
      const fits =
        words.every((word) => card.dataset.search.includes(word)) &&
        (!family.value || card.dataset.family === family.value) &&
        (!mechanism.value || card.dataset.entry === mechanism.value);
      card.hidden = !fits;
      shown += fits;
      for (const row of card.querySelectorAll("[data-tier]")) {
        row.hidden = Boolean(tier.value) && row.dataset.tier !== tier.value;
      }
    }
    count.textContent = `${shown} of ${cards.length} entries`;
    nothing.hidden = shown > 0;
  };
  filters.addEventListener("input", apply);
  filters.addEventListener("change", apply);
  filters.addEventListener("reset", () => setTimeout(apply));
  filters.addEventListener("submit", (event) => event.preventDefault());
  apply();
}

const copyText = async (text) => {
  if (navigator.clipboard) {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch {
      // Not allowed here, as in some frames: the older way may be.
    }
  }
  const field = document.createElement("textarea");
  field.value = text;
  document.body.append(field);
  field.select();
  const done = document.execCommand("copy");
  field.remove();
  return done;
};

document.addEventListener("click", async (event) => {
  const button = event.target.closest("button.copy");
  if (!button) return;
  const done = await copyText(button.closest(".code").querySelector("pre").textContent);
  button.textContent = done ? "Copied" : "Select it and press Ctrl+C";
  setTimeout(() => (button.textContent = "Copy"), 2000);
});
