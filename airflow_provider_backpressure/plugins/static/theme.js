// Follows Airflow's theme as it is changed. Which one holds is decided in initial_theme.js, before the first paint.

function outer() {
  try {
    return window.parent !== window ? window.parent.document : null;
  } catch {
    return null;
  }
}

export function follow(changed) {
  const apply = () => {
    const name = window.airflowIsDark() ? "dark" : "light";
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
