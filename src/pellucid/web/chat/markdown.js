// @ts-check
// Markdown as elements: markdown-it reads it, and each of its tokens becomes an element with text nodes. No markup is ever parsed, so HTML in a text stays text.

import MarkdownIt from "markdown-it";
import { Fragment, h, html, useEffect, useMemo, useRef, useSignal } from "../html.js";
import { CopyButton } from "./files.js";
import { Formula, readFormulas } from "./maths.js";

const parser = new MarkdownIt({ html: false });
readFormulas(parser);
/** Addresses that a link may have. */
const SAFE = /^(https?|mailto):/i;
parser.validateLink = (/** @type {string} */ url) => SAFE.test(url);

/** @type {Record<string, string>} headings begin below those of the page */
const TAGS = { h1: "h3", h2: "h4", h3: "h5", h4: "h6", h5: "h6", h6: "h6" };

/**
 * A text in Markdown. Each piece of its text knows where in the source it stands: `data-at`.
 * @param {{text: string, isOpen: boolean}} props `isOpen`: it still grows, so blocks that are whole are not read again
 */
export function Markdown({ text, isOpen }) {
  const known = useRef(/** @type {Block[]} */ ([]));
  const blocks = useMemo(() => (known.current = isOpen ? grown(known.current, text) : blocksOf(text, 0)), [text, isOpen]);
  return html`${blocks.map((block) => html`<${Drawn} key=${block.at} block=${block} />`)}`;
}

/** @param {{block: Block}} props */
const Drawn = ({ block: { source, at } }) => useMemo(() => elements(parser.parse(source, {}), source, at), [source, at]);

/** @typedef {{source: string, at: number}} Block a block of the outermost level, with what separates it from the next one */

/**
 * @param {string} text
 * @param {number} at where it begins in the whole text
 * @returns {Block[]}
 */
function blocksOf(text, at) {
  // Names of links are defined anywhere in a text: then it is one block.
  if (/^ {0,3}\[[^\]]+\]:/m.test(text)) return [{ source: text, at }];
  const lines = lineStarts(text);
  const starts = new Set(topLevel(text).map((line) => lines[line]));
  const cuts = [0, ...[...starts].filter((start) => start > 0), text.length];
  return cuts.slice(0, -1).map((start, index) => ({ source: text.slice(start, cuts[index + 1]), at: at + start }));
}

/** The first lines of the blocks of the outermost level. @param {string} text */
function topLevel(text) {
  /** @type {any[]} */
  const tokens = [];
  parser.block.parse(text.replace(/\r\n?|\n/g, "\n"), parser, {}, tokens);
  return tokens.filter(({ level, nesting, map }) => level === 0 && nesting >= 0 && map).map(({ map }) => map[0]);
}

/**
 * The blocks of a text that has grown: only the last two are read again.
 * @param {Block[]} before
 * @param {string} text
 */
function grown(before, text) {
  const kept = before.slice(0, -2);
  const from = kept.length ? kept[kept.length - 1].at + kept[kept.length - 1].source.length : 0;
  const isGrown = kept.every(({ source, at }) => text.startsWith(source, at));
  return isGrown ? [...kept, ...blocksOf(text.slice(from), from)] : blocksOf(text, 0);
}

/** @param {string} text */
function lineStarts(text) {
  const starts = [0];
  for (const { index } of text.matchAll(/\n/g)) starts.push(index + 1);
  return starts;
}

/**
 * @param {any[]} tokens of markdown-it
 * @param {string} source
 * @param {number} at where the source begins in the whole text
 */
function elements(tokens, source, at) {
  const lines = lineStarts(source);
  const cursor = { at: 0 };
  /** @param {any[]} list @returns {any[]} */
  const build = (list) => {
    /** @type {{token: any, children: any[]}[]} */
    const stack = [{ token: null, children: [] }];
    for (const token of list) {
      if (token.map && token.nesting >= 0) cursor.at = Math.max(cursor.at, lines[token.map[0]] ?? 0);
      if (token.nesting > 0) stack.push({ token, children: [] });
      else if (token.nesting < 0) {
        const { token: open, children } = /** @type {any} */ (stack.pop());
        stack[stack.length - 1].children.push(element(open, children));
      } else stack[stack.length - 1].children.push(token.type === "inline" ? h(Fragment, null, ...build(token.children)) : leaf(token));
    }
    return stack[0].children;
  };
  /** Where a piece of text stands. @param {string} content */
  const place = (content) => {
    const found = source.indexOf(content, cursor.at);
    if (found >= 0) cursor.at = found + content.length;
    return at + (found < 0 ? cursor.at : found);
  };
  /** @param {any} token */
  const leaf = (token) => {
    switch (token.type) {
      case "text":
      case "text_special":
        return token.content && html`<span data-at=${place(token.content)}>${token.content}</span>`;
      case "softbreak":
        return "\n";
      case "hardbreak":
        return html`<br />`;
      case "hr":
        return html`<hr />`;
      case "code_inline":
        return html`<code data-at=${place(token.content)}>${token.content}</code>`;
      case "formula":
        return html`<${Formula} tex=${token.content} written=${token.markup} isDisplay=${token.meta.isDisplay} at=${place(token.markup)} />`;
      case "fence":
      case "code_block":
        return html`<${Code} text=${token.content} language=${(token.info ?? "").trim().split(/\s+/)[0]} at=${place(token.content)} />`;
      case "image":
        return link(token.attrGet("src"), html`<span data-at=${place(token.content)}>${token.content || "image"}</span>`);
      default:
        return token.content;
    }
  };
  return build(tokens);
}

/** @param {string} href @param {any} children pictures of other hosts are not loaded: they are links as well */
const link = (href, children) =>
  SAFE.test(href) ? html`<a href=${href} target="_blank" rel="noopener noreferrer nofollow">${children}</a>` : children;

/** @param {any} token @param {any[]} children */
function element(token, children) {
  if (token.hidden) return h(Fragment, null, ...children);
  if (token.type === "link_open") return link(token.attrGet("href"), children);
  if (token.type === "table_open") return html`<div class="wide-table" tabindex="0" role="region" aria-label="table"><table>${children}</table></div>`;
  const align = /text-align:(\w+)/.exec(token.attrGet("style") ?? "")?.[1];
  /** @type {Record<string, any>} */
  const attributes = align ? { class: `to-${align}` } : {};
  if (token.type === "ordered_list_open" && token.attrGet("start")) attributes.start = Number(token.attrGet("start"));
  return h(TAGS[token.tag] ?? token.tag, attributes, ...children);
}

/** highlight.js, once some code is shown. @type {Promise<any> | null} */
let highlighter = null;

/** @param {{text: string, language: string, at: number}} props */
function Code({ text, language, at }) {
  const hljs = useSignal(/** @type {any} */ (null));
  useEffect(() => {
    highlighter ??= import("highlight.js").then((module) => module.default);
    highlighter.then((loaded) => (hljs.value = loaded), () => {});
  }, []);
  const known = hljs.value?.getLanguage(language);
  const shown = useMemo(() => (known ? coloured(hljs.value.highlight(text, { language, ignoreIllegals: true })._emitter.rootNode.children) : text), [text, known]);
  return html`<figure class="code-block">
    <figcaption><span>${language || "text"}</span><${CopyButton} text=${text} /></figcaption>
    <pre tabindex="0" aria-label=${`code, ${language || "text"}`}><code data-at=${at}>${shown}</code></pre>
  </figure>`;
}

/** What highlight.js found, as elements. @param {any[]} nodes @returns {any[]} */
const coloured = (nodes) =>
  nodes.map((node) =>
    typeof node === "string" ? node : html`<span class=${node.scope ? `hl-${node.scope.split(".")[0]}` : undefined}>${coloured(node.children)}</span>`,
  );
