// Light and dark as Airflow's own page has it. In a frame of the same origin its element decides; alone, its stored choice.

function outer() {
  try {
    return window.parent !== window ? window.parent.document : null;
  } catch {
    return null;
  }
}

function dark() {
  const root = outer()?.documentElement;
  if (root?.classList.contains("dark")) return true;
  if (root?.classList.contains("light")) return false;
  const kept = localStorage.getItem("theme");
  if (kept === "dark" || kept === "light") return kept === "dark";
  return matchMedia("(prefers-color-scheme: dark)").matches;
}

export function follow(changed) {
  const apply = () => {
    const name = dark() ? "dark" : "light";
    if (document.documentElement.dataset.theme === name) return;
    document.documentElement.dataset.theme = name;
    changed();
  };
  apply();
  const root = outer()?.documentElement;
  if (root) new MutationObserver(apply).observe(root, { attributes: true, attributeFilter: ["class", "style"] });
  addEventListener("storage", apply);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", apply);
}

export const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
