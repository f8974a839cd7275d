// Lets Node resolve the page's bare imports as a browser does: by the import map of index.html.
import { readFileSync } from "node:fs";
import { register } from "node:module";

const index = new URL("../../src/pellucid/web/index.html", import.meta.url);
const text = /<script type="importmap">(.*?)<\/script>/s.exec(readFileSync(index, "utf8"))[1];
const map = Object.fromEntries(
  Object.entries(JSON.parse(text).imports).map(([name, path]) => [name, new URL(path, index).href]),
);
const hook = `export function resolve(name, context, next) {
  const found = ${JSON.stringify(map)}[name];
  return found ? { url: found, shortCircuit: true } : next(name, context);
}
export async function load(url, context, next) {
  const isPage = url.includes("/pellucid/web/") && url.endsWith("js");
  return next(url, isPage ? { ...context, format: "module" } : context);
}`;
register(`data:text/javascript,${encodeURIComponent(hook)}`);
