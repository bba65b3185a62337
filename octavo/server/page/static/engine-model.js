// What the engine view knows: the last steps, rates, step times, the newest state. Takes the events
// of /octavo/events and answers questions of the panels. No DOM, no clock but the server's `t`.

export const MAX_STEPS = 240; // more than the widest chart has columns
const MAX_FINISHED = 8; // finished requests that stay readable in the table
const RATE_WINDOW_S = 2;
const SPARK_SLOT_S = 0.5;
export const SPARK_SLOTS = 90; // 45 s
const GAP_S = 0.3; // a pause between steps worth a mark
const LOWEST_TIME_S = 0.0005;
const BUCKETS_PER_DOUBLING = 2;
export const NUM_TIME_BUCKETS = 30; // 0.5 ms to 16 s
const KIND_OF_MARK = {'.': 'free', c: 'cached', 1: 'one'};
const NUM_TIMES = 2000; // steps the histogram looks back

export class EngineModel {
  constructor() {
    this.hello = null;
    this._watch = 0; // slots are numbered anew whenever somebody begins to watch
    this._empty();
  }

  _empty() {
    this.steps = []; // newest last, as _addStep makes them
    this.state = null;
    this.requests = []; // live ones first, then some finished
    this.left = 0; // steps nobody saw
    this._finished = [];
    this._holders = []; // block id -> requests, made when asked for
    this._epochs = new Map(); // slot -> how many requests have left it
    this._recent = []; // [t, prefill, decode] of the rate window
    this._spark = new Map(); // slot of time -> [prefill, decode]
    this._times = [];
    this._lastT = 0;
    this._seenAt = 0;
  }

  /** One event of the stream. Returns which parts changed: "hello", "steps", "state" or "". */
  apply(name, value) {
    if (name === 'hello') {
      const same = this.hello && this.hello.model === value.model &&
        this.hello.num_blocks === value.num_blocks;
      if (!same) this._empty();
      this.hello = value;
      this._watch += 1;
      this._epochs.clear();
    } else if (name === 'steps') this._applySteps(value);
    else if (name === 'state') this._applyState(value);
    else return '';
    return name;
  }

  _applySteps({steps, dropped}) {
    this.left += dropped || 0;
    for (const step of steps) {
      const before = this.steps[this.steps.length - 1];
      if (before && step.n <= before.n) this._empty(); // another engine: it counts from one
      this._addStep(step, before && step.n > before.n ? before : null);
    }
    if (this.steps.length > MAX_STEPS) this.steps.splice(0, this.steps.length - MAX_STEPS);
    if (this._times.length > NUM_TIMES) this._times.splice(0, this._times.length - NUM_TIMES);
  }

  _addStep(step, before) {
    const cells = [];
    let prefill = 0;
    let decode = 0;
    for (const [slot, prefillTokens, decodeTokens] of step.reqs) {
      cells.push({slot, key: this.keyOf(slot), prefill: prefillTokens, decode: decodeTokens});
      prefill += prefillTokens;
      decode += decodeTokens;
    }
    cells.sort((one, other) => one.slot - other.slot); // the same order in every column
    for (const slot of step.finished) this._epochs.set(slot, (this._epochs.get(slot) || 0) + 1);
    this.steps.push({
      n: step.n, t: step.t, dt: step.dt, cells, prefill, decode, waiting: step.waiting,
      running: step.running, preempted: step.preempted.length, finished: step.finished.length,
      skipped: before ? step.n - before.n - 1 : 0,
      idle: before && step.t - step.dt - before.t > GAP_S ? step.t - step.dt - before.t : 0});
    this._times.push(step.dt);
    this._recent.push([step.t, prefill, decode]);
    const slot = Math.floor(step.t / SPARK_SLOT_S);
    const spark = this._spark.get(slot) || [0, 0];
    spark[0] += prefill;
    spark[1] += decode;
    this._spark.set(slot, spark);
    this._tick(step.t);
  }

  _applyState(state) {
    const ids = new Set(state.requests.map((request) => request.id));
    // of a list that was cut, those that are missing need not be over
    const isWhole = state.requests.length === state.running + state.waiting;
    for (const request of this.state && isWhole ? this.state.requests : []) {
      if (!ids.has(request.id)) {
        this._finished.unshift({...request, state: 'finished', key: ''});
      }
    }
    this._finished = this._finished.filter((request) => !ids.has(request.id))
      .slice(0, MAX_FINISHED);
    for (const request of state.requests) request.key = this.keyOf(request.slot);
    this.state = state;
    this.requests = [...state.requests, ...this._finished];
    this._holders = null;
    this._tick(state.t);
  }

  _tick(t) {
    if (t > this._lastT) {
      this._lastT = t;
      this._seenAt = performance.now();
    }
  }

  /** The server's clock, as far as it is known. */
  now() {
    return this._lastT + (performance.now() - this._seenAt) / 1000;
  }

  /** Names one tenancy of a slot: requests that follow each other in it differ. */
  keyOf(slot) {
    return `${this._watch}.${slot}.${this._epochs.get(slot) || 0}`;
  }

  /** {prefill, decode} tokens a second over the last two seconds. */
  rates() {
    const from = this.now() - RATE_WINDOW_S;
    while (this._recent.length && this._recent[0][0] < from) this._recent.shift();
    let prefill = 0;
    let decode = 0;
    for (const [, p, d] of this._recent) {
      prefill += p;
      decode += d;
    }
    return {prefill: prefill / RATE_WINDOW_S, decode: decode / RATE_WINDOW_S};
  }

  /** Tokens a second, oldest first, of kind 0 (prefill) or 1 (decode). */
  spark(kind) {
    const last = Math.floor(this.now() / SPARK_SLOT_S);
    for (const slot of this._spark.keys()) {
      if (slot <= last - SPARK_SLOTS) this._spark.delete(slot);
    }
    const values = [];
    for (let slot = last - SPARK_SLOTS; slot < last; slot += 1) {
      const found = this._spark.get(slot);
      values.push(found ? found[kind] / SPARK_SLOT_S : 0);
    }
    return values;
  }

  /** {counts, median, p99, number} of the last step times; counts by bucket of half a doubling. */
  times() {
    const counts = new Array(NUM_TIME_BUCKETS).fill(0);
    for (const seconds of this._times) counts[timeBucket(seconds)] += 1;
    const sorted = Float64Array.from(this._times).sort();
    const at = (share) => sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))];
    return {counts, number: sorted.length, median: at(0.5), p99: at(0.99)};
  }

  request(id) {
    return this.requests.find((request) => request.id === id) || null;
  }

  /** Requests holding a block. */
  holders(blockId) {
    if (!this._holders) {
      this._holders = new Map();
      for (const request of this.state ? this.state.requests : []) {
        for (const block of request.blocks) {
          if (!this._holders.has(block)) this._holders.set(block, []);
          this._holders.get(block).push(request);
        }
      }
    }
    return this._holders.get(blockId) || [];
  }

  /** Blocks a character of the map stands for. */
  get blocksPerChar() {
    return (this.state && this.state.blocks.per_char) || 1;
  }

  /** Blocks by tone, {free, cached, one, shared}. The map of a large cache shows of several blocks
   * the most referred to only: then all but the sum of one and shared is an estimate. */
  blockCounts() {
    const {total, free, refs} = this.state.blocks;
    const counts = {free: 0, cached: 0, one: 0, shared: 0};
    for (const mark of refs) counts[KIND_OF_MARK[mark] || 'shared'] += 1;
    if (this.blocksPerChar === 1) return counts;
    const held = Math.max(1, counts.one + counts.shared);
    const rest = Math.max(1, counts.free + counts.cached);
    const one = Math.round(((total - free) * counts.one) / held);
    const cached = Math.round((free * counts.cached) / rest);
    return {free: free - cached, cached, one, shared: total - free - one};
  }

  /** The reference mark of a block: '.', 'c', '1'..'9' or '+'. */
  mark(blockId) {
    return this.state.blocks.refs[Math.floor(blockId / this.blocksPerChar)] || '.';
  }

  /** {last, share}: tokens of the request in the newest step, and of the last steps' tokens. */
  share(key) {
    const share = {last: 0, lastTotal: 0, tokens: 0, total: 0};
    for (const step of this.steps.slice(-120)) {
      const cell = step.cells.find((one) => one.key === key);
      share.last = cell ? cell.prefill + cell.decode : 0;
      share.lastTotal = step.prefill + step.decode;
      share.tokens += share.last;
      share.total += share.lastTotal;
    }
    return share;
  }
}

export function timeBucket(seconds) {
  const bucket = Math.floor(Math.log2(seconds / LOWEST_TIME_S) * BUCKETS_PER_DOUBLING);
  return Math.max(0, Math.min(NUM_TIME_BUCKETS - 1, bucket));
}

/** The lower bound of a bucket, in seconds. */
export function bucketStart(bucket) {
  return LOWEST_TIME_S * 2 ** (bucket / BUCKETS_PER_DOUBLING);
}
