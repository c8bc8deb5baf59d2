// A script with line numbers; keywords, texts, comments and numbers in color. Every piece is a text node.

import { h } from "./dom.js";

const PIECES = /("""[\s\S]*?(?:"""|$)|'''[\s\S]*?(?:'''|$)|[rbfu]{0,2}"(?:\\.|[^"\\\n])*"?|[rbfu]{0,2}'(?:\\.|[^'\\\n])*'?)|(#[^\n]*)|\b(False|None|True|and|as|assert|async|await|break|class|continue|def|del|elif|else|except|finally|for|from|global|if|import|in|is|lambda|nonlocal|not|or|pass|raise|return|try|while|with|yield)\b|\b(\d[\d_.]*)\b/gi;
const MOST_CHARACTERS = 60000;

export function scriptView(source, faultLine) {
  source = source.replace(/\n+$/, "");
  const lines = [[]];
  const add = (text, kind) => {
    text.split("\n").forEach((part, index) => {
      if (index) lines.push([]);
      if (part) lines[lines.length - 1].push(kind ? h("span", { class: kind }, part) : part);
    });
  };
  if (source.length > MOST_CHARACTERS) add(source);
  else pieces(source, add);
  const items = lines.map((line, index) => h("li", { class: index + 1 === faultLine ? "fault" : null, id: `line-${index + 1}` }, line.length ? line : "\u200b"));
  return h("div", { class: "script", tabindex: "0", role: "region", "aria-label": "script" }, h("ol", {}, items));
}

// Returns the line that a fault's message names, such as "line 4: ...".
export function faultLine(fault) {
  const match = fault && /(?:^|\b)line (\d{1,6})\b/.exec(fault.message);
  return match ? Number(match[1]) : null;
}

function pieces(source, add) {
  let at = 0;
  for (const match of source.matchAll(PIECES)) {
    if (match.index > at) add(source.slice(at, match.index));
    add(match[0], match[1] !== undefined ? "s" : match[2] !== undefined ? "c" : match[3] !== undefined && match[3] === match[0] && /^[a-zFNT]/.test(match[0]) ? "k" : match[4] !== undefined ? "n" : null);
    at = match.index + match[0].length;
  }
  if (at < source.length) add(source.slice(at));
}
