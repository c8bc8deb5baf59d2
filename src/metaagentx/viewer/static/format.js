// Numbers and times as text.

export function number(value, digits = 3) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e7)) return value.toExponential(1).replace("e+", "e");
  if (size >= 1000) return Math.round(value).toLocaleString("en-US");
  if (Number.isInteger(value)) return String(value);
  return String(Number(value.toPrecision(size < 1 ? Math.max(2, digits - 1) : digits)));
}

export function fixed(value, digits = 2) {
  return value === null || value === undefined || !Number.isFinite(value) ? "–" : (value + 0).toFixed(digits).replace(/^-(0\.?0*)$/, "$1");
}

export function signed(value, digits = 2) {
  const text = fixed(value, digits);
  return value > 0 && text !== "–" ? `+${text}` : text;
}

export function percent(value, digits) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  const places = digits === undefined ? (size > 0 && size < 0.0995 ? 1 : 0) : digits;
  return `${(100 * value).toFixed(places)}%`;
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return "–";
  if (seconds < 0.001) return "0 s";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 60) return `${Number(seconds.toPrecision(3))} s`;
  const minutes = Math.round(seconds / 60);
  if (minutes < 60) return `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${String(minutes % 60).padStart(2, "0")}` : `${Math.round(hours / 24)} days`;
}

export function ago(timestamp) {
  if (!timestamp) return "–";
  const seconds = Math.max(0, Date.now() / 1000 - timestamp);
  return seconds < 5 ? "now" : `${duration(Math.round(seconds)).replace(/ (\d\d)$/, " $1 min")} ago`;
}

export function date(timestamp) {
  return timestamp ? new Date(timestamp * 1000).toLocaleString() : "–";
}

export function count(amount, noun) {
  return `${amount.toLocaleString("en-US")} ${noun}${amount === 1 ? "" : "s"}`;
}

export function clip(text, longest) {
  return text.length <= longest ? text : `${text.slice(0, longest)}…`;
}

// Slices a text by characters as Python counts them: one for each code point.
export function byCharacters(text) {
  if (!/[\ud800-\udfff]/.test(text)) return { length: text.length, slice: (from, to) => text.slice(from, to) };
  const letters = Array.from(text);
  return { length: letters.length, slice: (from, to) => letters.slice(from, to).join("") };
}
