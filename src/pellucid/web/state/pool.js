// @ts-check
// Tables of numbers that keep their newest rows, and the block pool at any moment, from its operations in such a table.

/**
 * Rows are numbered 0, 1, 2 ... as they are added; the rows from `first` to `end` - 1 are kept.
 * `columns.name[slot(row)]` is a value; a column of `width` w has w values a row, from slot(row) * w on.
 * @template {string} Name
 */
export class Columns {
  /**
   * @param {Record<Name, ColumnKind | [ColumnKind, number]>} kinds a column's type, with its width if that is not 1
   * @param {number} capacity rows that are kept
   */
  constructor(kinds, capacity) {
    this.capacity = capacity;
    this.first = 0;
    this.end = 0;
    this.size = Math.min(1024, capacity);
    /** @type {[Name, ColumnKind, number][]} */
    this.kinds = /** @type {[Name, ColumnKind | [ColumnKind, number]][]} */ (Object.entries(kinds)).map(([name, kind]) =>
      Array.isArray(kind) ? [name, kind[0], kind[1]] : [name, kind, 1],
    );
    /** @type {Record<Name, Float64Array | Int32Array | Uint8Array>} */
    this.columns = /** @type {any} */ ({});
    for (const [name, kind, width] of this.kinds) this.columns[name] = new kind(this.size * width);
  }

  get length() {
    return this.end - this.first;
  }

  /** @param {number} row */
  slot(row) {
    return row % this.size;
  }

  /** Adds a row and returns its slot, whose old values the caller overwrites. */
  add() {
    if (this.end === this.size && this.size < this.capacity) this.grow();
    const slot = this.end % this.size;
    this.end += 1;
    this.first = Math.max(this.first, this.end - this.size);
    return slot;
  }

  /**
   * Adds a row of columns that are one value wide.
   * @param {Partial<Record<Name, number>>} row
   */
  push(row) {
    const slot = this.add();
    for (const [name, , width] of this.kinds) {
      if (width === 1) this.columns[name][slot] = row[name] ?? 0;
    }
    return slot;
  }

  /**
   * One value of a column of width 1.
   * @param {Name} name
   * @param {number} row
   */
  get(name, row) {
    return this.columns[name][row % this.size];
  }

  /**
   * The first kept row whose value is at least `value`, in a column that never falls; `end` if there is none.
   * @param {Name} name
   * @param {number} value
   */
  find(name, value) {
    let low = this.first;
    let high = this.end;
    const column = this.columns[name];
    while (low < high) {
      const middle = Math.floor((low + high) / 2);
      if (column[middle % this.size] < value) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  grow() {
    this.size = Math.min(this.size * 2, this.capacity);
    for (const [name, kind, width] of this.kinds) {
      const grown = new kind(this.size * width);
      grown.set(this.columns[name]);
      this.columns[name] = grown;
    }
  }
}

const OPS_BETWEEN_KEYFRAMES = 4096;
const MAX_KEYFRAMES = 64;
const OP = "AFSRCHEOILxt"; // those of events.md, and x: a request ended, t: it lost blocks of its tail

/** What is known of a block beside its counters, as bits. */
export const SEALED = 1;
export const COPIED = 2; // it came about by copy-on-write
export const SWAPPED_IN = 4;
export const LOADED = 8; // from the prefix store

/** The state of every block. */
export class Pool {
  /**
   * @param {number} numBlocks
   * @param {number} blockTokens
   * @param {Set<number>} looks requests that compute again what somebody looks at: a block that they share stays its owner's
   */
  constructor(numBlocks, blockTokens, looks) {
    this.numBlocks = numBlocks;
    this.blockTokens = blockTokens;
    this.looks = looks;
    /** Owners of each block. */
    this.owners = new Int32Array(numBlocks);
    /** The request that used it last, by number; -1: none. */
    this.lastOwner = new Int32Array(numBlocks).fill(-1);
    /** Tokens in it. */
    this.fill = new Int32Array(numBlocks);
    this.flags = new Uint8Array(numBlocks);
    /** The op that touched it last, counted from the first op there was; -1: none. */
    this.touched = new Float64Array(numBlocks).fill(-1);
    /** The block table of each request that has blocks, of the first group of layers; -1: freed behind a window. @type {Map<number, number[]>} */
    this.tables = new Map();
  }

  copy() {
    const copy = new Pool(this.numBlocks, this.blockTokens, this.looks);
    copy.owners.set(this.owners);
    copy.lastOwner.set(this.lastOwner);
    copy.fill.set(this.fill);
    copy.flags.set(this.flags);
    copy.touched.set(this.touched);
    for (const [request, blocks] of this.tables) copy.tables.set(request, [...blocks]);
    return copy;
  }

  /** Blocks owned, kept and free; slots without a token; blocks shared, and their owners but the first. */
  counts() {
    let [used, cached, waste, shared, extra] = [0, 0, 0, 0, 0];
    for (let block = 0; block < this.numBlocks; block++) {
      const owners = this.owners[block];
      if (owners > 0) {
        used += 1;
        waste += this.blockTokens - this.fill[block];
        extra += owners - 1;
        if (owners > 1) shared += 1;
      } else if (this.flags[block] & SEALED) cached += 1;
    }
    return { used, cached, free: this.numBlocks - used - cached, waste, shared, extra };
  }

  /** How many tokens a block table holds. @param {number[]} table */
  tokensIn(table) {
    return table.reduce((sum, block) => sum + (this.fill[block] ?? 0), 0);
  }

  /**
   * The requests that own a block, by number.
   * @param {number} block
   */
  ownersOf(block) {
    const found = [];
    for (const [request, blocks] of this.tables) if (blocks.includes(block)) found.push(request);
    return found;
  }

  /**
   * @param {string} op
   * @param {number} block
   * @param {number} a
   * @param {number} b
   * @param {number} index of the op
   * @param {number} group of the block table that changes
   */
  apply(op, block, a, b, index, group = 0) {
    if (op === "x") {
      this.tables.delete(a);
      return;
    }
    if (op === "t") {
      const table = this.tables.get(a);
      if (table) table.length = Math.max(0, table.length - b);
      return;
    }
    this.touched[block] = index;
    if (op === "A" || op === "I" || op === "L") {
      this.owners[block] = 1;
      this.fill[block] = op === "A" ? 0 : this.blockTokens;
      this.flags[block] = op === "I" ? SWAPPED_IN : op === "L" ? LOADED : 0;
      if (op === "A" && group === 0) this.table(a)[b] = block;
      if (op === "L" && group === 0 && !this.table(a).includes(block)) this.table(a).push(block);
      if (op !== "I") this.lastOwner[block] = a;
    } else if (op === "F") {
      this.fill[block] = a;
    } else if (op === "S") {
      this.owners[block] = b;
      if (!this.looks.has(a) || this.lastOwner[block] < 0) this.lastOwner[block] = a;
      if (group === 0) this.table(a).push(block);
    } else if (op === "R") {
      this.owners[block] = a;
      if (a === 0) {
        for (const table of this.tables.values()) {
          const at = table.indexOf(block);
          if (at === table.length - 1) table.pop();
          else if (at >= 0) table[at] = -1; // behind the window
        }
        if (!(this.flags[block] & SEALED)) this.fill[block] = 0;
      }
    } else if (op === "C") {
      this.owners[block] = 1;
      this.fill[block] = this.fill[a];
      this.flags[block] = COPIED;
      this.lastOwner[block] = b;
      if (group !== 0) return;
      const table = this.table(b);
      const at = table.indexOf(a);
      if (at >= 0) table[at] = block;
      else table.push(block);
    } else if (op === "H") {
      this.flags[block] |= SEALED;
      this.fill[block] = this.blockTokens;
    } else if (op === "E") {
      this.flags[block] &= ~SEALED;
      if (this.owners[block] === 0) {
        this.fill[block] = 0;
        this.lastOwner[block] = -1;
      }
    }
  }

  /** @param {number} request */
  table(request) {
    let found = this.tables.get(request);
    if (!found) this.tables.set(request, (found = []));
    return found;
  }
}

/** All that happened to blocks, and the pool at any moment of it. */
export class PoolHistory {
  /** @param {number} capacity ops that are kept */
  constructor(capacity) {
    this.ops = new Columns({ seq: Float64Array, op: Uint8Array, block: Int32Array, a: Float64Array, b: Float64Array, group: Uint8Array }, capacity);
    /** @type {{op: number, seq: number, pool: Pool}[]} the pool before an op */
    this.keyframes = [];
    /** Numbers of requests that only look. @type {Set<number>} */
    this.looks = new Set();
    this.newest = new Pool(0, 0, this.looks);
    /** @type {{op: number, pool: Pool} | null} where the last question led: the next one is often near */
    this.visited = null;
  }

  /**
   * @param {number} numBlocks
   * @param {number} blockTokens
   */
  setSize(numBlocks, blockTokens) {
    if (this.newest.numBlocks === numBlocks && this.newest.blockTokens === blockTokens) return;
    this.newest = new Pool(numBlocks, blockTokens, this.looks);
    this.keyframes = [{ op: this.ops.end, seq: -1, pool: this.newest.copy() }];
    this.visited = null;
  }

  /**
   * Takes in the ops of an event `kv`.
   * @param {any} event
   * @param {(req: string) => number} number of a request
   */
  take(event, number) {
    event.ops.forEach((/** @type {any} */ [op, block, a, b], /** @type {number} */ index) => {
      const group = event.groups?.[index] ?? 0;
      if (op === "A" || op === "S" || op === "L") this.add(event.seq, op, block, number(a), b ?? 0, group);
      else if (op === "C") this.add(event.seq, op, block, a, number(b), group);
      else if (op === "H") this.add(event.seq, op, block, 0, 0);
      else this.add(event.seq, op, block, a ?? 0, b ?? 0);
    });
  }

  /**
   * A request ended, and has no blocks any more.
   * @param {number} seq
   * @param {number} request
   */
  end(seq, request) {
    this.add(seq, "x", 0, request, 0);
  }

  /**
   * A request lost blocks of its tail.
   * @param {number} seq
   * @param {number} request
   * @param {number} blocks
   */
  shorten(seq, request, blocks) {
    this.add(seq, "t", 0, request, blocks);
  }

  /**
   * @param {number} seq
   * @param {string} op
   * @param {number} block
   * @param {number} a
   * @param {number} b
   * @param {number} group
   */
  add(seq, op, block, a, b, group = 0) {
    if (this.ops.end % OPS_BETWEEN_KEYFRAMES === 0 && this.ops.end > 0) this.keep(seq - 1);
    const index = this.ops.end;
    this.ops.push({ seq, op: OP.indexOf(op), block, a, b, group });
    this.newest.apply(op, block, a, b, index, group);
  }

  /** @param {number} seq up to which the newest state is */
  keep(seq) {
    this.keyframes.push({ op: this.ops.end, seq, pool: this.newest.copy() });
    if (this.keyframes.length > MAX_KEYFRAMES) this.keyframes.splice(1, 1);
  }

  /**
   * Begins anew from a snapshot.
   * @param {number} seq up to which it is
   * @param {any} event the snapshot
   * @param {(req: string) => number} number of a request
   */
  reset(seq, event, number) {
    const pool = new Pool(this.newest.numBlocks, this.newest.blockTokens, this.looks);
    for (const [block, owners, hash] of event.blocks) {
      if (block >= pool.numBlocks) continue;
      pool.owners[block] = owners;
      pool.flags[block] = hash === null ? 0 : SEALED;
      pool.fill[block] = hash === null ? 0 : pool.blockTokens;
    }
    for (const each of event.requests) {
      const request = number(each.req);
      pool.tables.set(request, [...each.blocks]);
      each.blocks.forEach((/** @type {number} */ block, /** @type {number} */ index) => {
        const filled = Math.max(0, Math.min(pool.blockTokens, each.computed_tok - index * pool.blockTokens));
        pool.fill[block] = Math.max(pool.fill[block], filled);
        pool.lastOwner[block] = request;
      });
    }
    this.newest = pool;
    this.keep(seq);
    this.visited = null;
  }

  /**
   * The pool after the event `seq`. It belongs to the history: read it at once, do not keep it.
   * @param {number} seq
   * @returns {Pool}
   */
  at(seq) {
    const end = this.ops.find("seq", seq + 1);
    if (end === this.ops.end && (this.keyframes.at(-1)?.seq ?? -1) <= seq) return this.newest;
    let start = this.keyframes[0] ?? { op: 0, seq: -1, pool: new Pool(0, 0, this.looks) };
    for (const each of this.keyframes) if (each.op <= end && each.seq <= seq) start = each;
    if (!this.visited || this.visited.op > end || this.visited.op < start.op) {
      this.visited = { op: start.op, pool: start.pool.copy() };
    }
    const { pool } = this.visited;
    for (let row = Math.max(this.visited.op, this.ops.first); row < end; row++) {
      const op = OP[this.ops.get("op", row)];
      const [a, b, group] = [this.ops.get("a", row), this.ops.get("b", row), this.ops.get("group", row)];
      pool.apply(op, this.ops.get("block", row), a, b, row, group);
    }
    this.visited.op = end;
    return pool;
  }

  /**
   * The ops up to a moment, the newest first.
   * @param {number} seq
   * @param {number} limit
   * @returns {{index: number, seq: number, op: string, block: number, a: number, b: number}[]}
   */
  recent(seq, limit) {
    const found = [];
    for (let row = this.ops.find("seq", seq + 1) - 1; row >= this.ops.first && found.length < limit; row--) {
      const op = OP[this.ops.get("op", row)];
      if (op === "x" || op === "t") continue;
      const [block, a, b] = [this.ops.get("block", row), this.ops.get("a", row), this.ops.get("b", row)];
      found.push({ index: row, seq: this.ops.get("seq", row), op, block, a, b });
    }
    return found;
  }
}
