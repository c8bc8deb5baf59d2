// The address after #: a path of names and numbers, and parameters.

export function parse(hash) {
  const [path, query] = hash.replace(/^#\/?/, "").split("?");
  let parts;
  try {
    parts = path.split("/").filter(Boolean).map(decodeURIComponent);
  } catch (error) {
    parts = [];
  }
  const place = { page: parts[0] || "runs", query: new URLSearchParams(query || "") };
  if (place.page === "run") {
    place.run = parts[1] ?? "";
    for (let index = 2; index + 1 < parts.length; index += 2) {
      const value = parts[index + 1];
      place[parts[index]] = /^\d{1,9}$/.test(value) ? Number(value) : value;
    }
  }
  return place;
}

export function to(page, ...rest) {
  return `#/${[page, ...rest].map((part) => encodeURIComponent(part)).join("/")}`;
}

export function toRun(run, tab) {
  return tab && tab !== "curves" ? to("run", run, "tab", tab) : to("run", run);
}

export function toNode(run, { step, task, design, execution, call, token }) {
  const path = ["run", run];
  for (const [name, value] of Object.entries({ step, task, design, execution, call, token })) {
    if (value === undefined || value === null) break;
    path.push(name, value);
  }
  return to(...path);
}

// The place above another: from a call to its execution, task, step and run.
export function above(place) {
  if (place.page === "compare") return place.query.get("run") === null ? "#/runs" : toNode(place.query.get("run"), { step: place.query.get("step"), task: place.query.get("task") });
  if (place.page !== "run" || place.step === undefined) return "#/runs";
  const { run, step, task, design, execution, call } = place;
  if (call !== undefined) return toNode(run, { step, task, design, execution });
  if (execution !== undefined) return toNode(run, { step, task, design });
  return task === undefined ? toRun(run, "steps") : toNode(run, { step });
}

export function withQuery(page, parameters) {
  const pairs = Object.entries(parameters).filter(([, value]) => value !== undefined && value !== null && value !== "");
  return `#/${page}?${new URLSearchParams(pairs)}`;
}
