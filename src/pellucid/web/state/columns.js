// @ts-check
// A table of numbers, a typed array for each column, which keeps its newest rows.

/**
 * The kinds of columns.
 * @typedef {Float64ArrayConstructor | Int32ArrayConstructor | Uint8ArrayConstructor} Kind
 */

/**
 * Rows are numbered 0, 1, 2 ... as they are added; the rows from `first` to `end` - 1 are kept.
 * `columns.name[slot(row)]` is a value; a column of `width` w has w values a row, from slot(row) * w on.
 * @template {string} Name
 */
export class Columns {
  /**
   * @param {Record<Name, Kind | [Kind, number]>} kinds a column's type, with its width if that is not 1
   * @param {number} capacity rows that are kept
   */
  constructor(kinds, capacity) {
    this.capacity = capacity;
    this.first = 0;
    this.end = 0;
    this.size = Math.min(1024, capacity);
    /** @type {[Name, Kind, number][]} */
    this.kinds = /** @type {[Name, Kind | [Kind, number]][]} */ (Object.entries(kinds)).map(([name, kind]) =>
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
