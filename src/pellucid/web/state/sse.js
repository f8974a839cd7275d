// @ts-check
// Parses server-sent events out of pieces of text, wherever these are cut (HTML standard, section 9.2.6).

/** Collects the frames of one stream. */
export class FrameReader {
  constructor() {
    this.rest = "";
  }

  /**
   * The frames that end in this piece.
   * @param {string} piece
   * @returns {EventFrame[]}
   */
  push(piece) {
    const parts = (this.rest + piece).split("\n\n");
    this.rest = parts.pop() ?? "";
    const frames = [];
    for (const part of parts) {
      /** @type {EventFrame} */
      const frame = { id: null, data: "" };
      let hasData = false;
      for (const line of part.split("\n")) {
        const colon = line.indexOf(":");
        if (colon === 0) continue; // a comment: the keepalive
        const name = colon < 0 ? line : line.slice(0, colon);
        const value = colon < 0 ? "" : line.slice(line[colon + 1] === " " ? colon + 2 : colon + 1);
        if (name === "id") frame.id = value;
        else if (name === "data") {
          frame.data += hasData ? "\n" + value : value;
          hasData = true;
        }
      }
      if (hasData) frames.push(frame);
    }
    return frames;
  }
}

/**
 * Reads bytes as text.
 * @param {ReadableStream<Uint8Array>} bytes
 * @returns {ReadableStreamDefaultReader<string>}
 */
export function textReader(bytes) {
  return bytes.pipeThrough(/** @type {any} */ (new TextDecoderStream())).getReader();
}
