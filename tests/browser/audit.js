// What a reader would stumble over: headings that skip a level, and text that stands out too little (WCAG AA, 4.5:1).
() => {
  const shown = [...document.querySelectorAll("h1, h2, h3, h4")].filter((one) => one.checkVisibility());
  const levels = shown.map((one) => Number(one.tagName[1]));
  const faults = new Set();
  if (levels.filter((level) => level === 1).length !== 1) faults.add("not one heading of the first level");
  levels.forEach((level, index) => {
    if (level > (levels[index - 1] ?? 0) + 1) faults.add(`heading ${shown[index].textContent} skips a level`);
  });

  const channel = (value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
  const light = ([red, green, blue]) =>
    0.2126 * channel(red / 255) + 0.7152 * channel(green / 255) + 0.0722 * channel(blue / 255);
  const parse = (text) => {
    const parts = text.match(/[\d.]+/g).map(Number);
    return parts.length === 4 ? parts : [...parts, 1];
  };
  const over = (top, under) => [0, 1, 2].map((index) => top[3] * top[index] + (1 - top[3]) * under[index]);
  const behind = (node) => {
    const layers = [];
    for (let each = node; each; each = each.parentElement) {
      layers.push(parse(getComputedStyle(each).backgroundColor));
    }
    return layers.reverse().reduce((under, top) => over(top, under), [255, 255, 255]);
  };
  const left = "svg, script, noscript, :disabled, .unseen, .skip";
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const text = walker.currentNode.textContent.trim();
    const node = walker.currentNode.parentElement;
    if (!text || !node.checkVisibility() || node.closest(left)) continue;
    const ground = behind(node);
    const both = [light(over(parse(getComputedStyle(node).color), ground)), light(ground)];
    const ratio = (Math.max(...both) + 0.05) / (Math.min(...both) + 0.05);
    if (ratio < 4.5) faults.add(`${ratio.toFixed(2)}:1 ${text.slice(0, 30)} (${node.className})`);
  }
  return [...faults];
}
