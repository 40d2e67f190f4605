// Light or dark before the first paint, as Airflow's own page has it: a script of its own, since modules run later.
// In a frame of the same origin Airflow's element decides; alone, its stored choice.
window.airflowIsDark = () => {
  let root = null;
  try {
    root = window.parent !== window ? window.parent.document.documentElement : null;
  } catch {
    root = null; // The frame of another site.
  }
  if (root?.classList.contains("dark")) return true;
  if (root?.classList.contains("light")) return false;
  const kept = localStorage.getItem("theme");
  return kept === "dark" || kept === "light" ? kept === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
};
document.documentElement.dataset.theme = window.airflowIsDark() ? "dark" : "light";
