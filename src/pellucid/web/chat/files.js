// @ts-check
// Texts on their way in and out: the clipboard, files that are read, files that are offered.

import { html, useSignal } from "../html.js";

const MAX_FILE = 2_000_000; // bytes of a text file: more than any model reads at once
const SAID_MS = 1500; // for which a button says what it did

/** @param {string} text */
async function copy(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  // Over plain http a page of another machine has no clipboard; what is selected can be copied all the same.
  const area = document.createElement("textarea");
  area.value = text;
  area.className = "spoken";
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}

/** @param {{text: string, label?: string}} props */
export function CopyButton({ text, label = "copy" }) {
  const said = useSignal("");
  /** @param {string} what */
  const say = (what) => {
    said.value = what;
    setTimeout(() => (said.value = ""), SAID_MS);
  };
  return html`<button type="button" class="quiet" onClick=${() => copy(text).then(() => say("copied"), () => say("no clipboard"))}>${said.value || label}</button>`;
}

/**
 * @param {File} file
 * @returns {Promise<TextFile>}
 */
export async function readText(file) {
  if (file.size > MAX_FILE) throw new Error(`${file.name}: ${file.size} bytes; at most ${MAX_FILE} can be attached`);
  const bytes = new Uint8Array(await file.arrayBuffer());
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(bytes);
    if (text.includes("\0")) throw new Error();
    return { name: file.name, text };
  } catch {
    throw new Error(`${file.name}: is not text in UTF-8`);
  }
}

/** Offers a text as a file. @param {string} name @param {string} text */
export function offer(name, text) {
  const url = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
