// Draws into the free part of the rail, beside the page's own place.

import { html, render, useEffect } from "../../vendor/ui.js";

export function InRail({ children }) {
  useEffect(() => {
    const slot = document.getElementById("rail-more");
    if (slot) render(html`<div>${children}</div>`, slot);
  });
  useEffect(
    () => () => {
      const slot = document.getElementById("rail-more");
      if (slot) render(null, slot);
    },
    [],
  );
  return null;
}
