// Types of what the modules hand to each other, for the type checker and for readers; no browser loads this file.

import type { ReadonlySignal, Signal } from "@preact/signals-core";

declare global {
  // ---- state

  type Session = ReturnType<typeof import("./state/session.js").createSession>;
  type Store = import("./state/store.js").Store;
  type Settings = ReturnType<typeof import("./state/session.js").createSettings>;
  type Pool = import("./state/pool.js").Pool;
  type Numeric = Signal<number>;

  /** Asks the server. What it refuses is thrown as an error with its message and `status`. */
  interface Api {
    get(path: string, signal?: AbortSignal): Promise<any>;
    post(path: string, body: any, signal?: AbortSignal): Promise<any>;
    /** Asks for something whose reply is a stream of JSON objects, and hands them on to the end. */
    stream(path: string, body: any, how: {
      /** Is told the engine's name of the request before the first object. */
      onStart?(req: string): void;
      onData?(data: any): void;
      signal?: AbortSignal;
    }): Promise<void>;
  }

  /** A comparison or a load that an engine ran once: what was asked, and its events, each with the milliseconds since it began. */
  interface RecordedRun {
    path: string;
    body: any;
    events: [number, any][];
  }

  /** What new tokens of a request read. */
  interface RecordedLooks {
    layers: number;
    heads: number;
    /** The largest of all looks. */
    error: number;
    /** Of one look, the median. */
    us: number;
    /** The position of the first look. */
    first: number;
    /** Of all tokens. */
    texts: string[];
    /** By the query of /v1/attn: of each look the weight of the first token, then position and weight of others, in thousandths. */
    views: Record<string, number[][]>;
  }

  /** What an engine answered once, for pages without one. */
  interface Answers {
    model: string;
    machine: string;
    when: string;
    runs: RecordedRun[];
    looks: Record<string, RecordedLooks>;
    /** By token id. */
    texts: Record<string, string>;
    /** For estimates. */
    plan: any;
  }

  interface RecordedAnswers {
    /** null: not read yet. */
    answers: Signal<Answers | null>;
    load(): Promise<Answers>;
    /** In place of a server's. */
    api: Api;
    runs(path: string, isWanted?: (body: any) => boolean): RecordedRun[];
  }

  /** Work whose reply is a stream of events: one at a time. */
  interface Streamed {
    /** What went wrong last; "" if nothing did. */
    problem: Signal<string>;
    /** Stops what runs; null: nothing runs. */
    stop: Signal<AbortController | null>;
    /** Counts what has come: what the events change, they change in place. */
    version: Numeric;
    /** Runs `work` unless something runs. */
    run(work: (stream: (path: string, body: any, onData: (event: any) => void) => Promise<void>) => Promise<void>): Promise<void>;
  }

  /** Texts that this page has the server generate. */
  interface Runs {
    /** Requests that are under way. */
    active: Signal<string[]>;
    /** What went wrong last; "" if nothing did. */
    problem: Signal<string>;
    /** The name by which the server's model is called. */
    model(): Promise<string>;
    /**
     * Starts a generation at an OpenAI route, given its body without model and stream; what happens is in the events. Gives the engine's name of
     * the request when the reply has ended.
     */
    start(path: string, body: any): Promise<string>;
    stop(req: string): void;
    /** The text of a token; "" while the server is asked for it. */
    textOf(id: number): string;
    /** Asks the server for the texts of tokens that nothing has shown yet. */
    learnTexts(ids: number[]): Promise<void>;
  }

  /** What is looked at, the same in every view. */
  interface Selected {
    /** The engine's name of a request; "": none was chosen. */
    req: Signal<string>;
    /** The position of a token of it; -1: none. */
    pos: Numeric;
    /** A block of the pool; -1: none. */
    block: Numeric;
  }

  /** The moment that all views show. */
  interface Cursor {
    /** The seq up to which everything is shown. */
    seq: ReadonlySignal<number>;
    /** The row of the table of steps; -1 before the first step. */
    stepRow: ReadonlySignal<number>;
    /** Microseconds since the engine's start. */
    timeUs: ReadonlySignal<number>;
    /** Grows with each batch of events. Read it to be called again when something is new. */
    version: Numeric;
    isPlaying: Signal<boolean>;
    /** Of replaying, times real time. */
    speed: Numeric;
    /** Whether the newest event is shown. */
    isLive: ReadonlySignal<boolean>;
    /** Shows the moment of an event. */
    seek(seq: number): void;
    /** Shows the moment at the end of a step, by its row in the table of steps. */
    seekStep(row: number): void;
    /** Some steps on or back. */
    move(steps: number): void;
    /** Follows the newest event. */
    goLive(): void;
    /** Holds where it is, or plays on from there as fast as it happened. */
    toggle(): void;
  }

  /** A request, from its first event on. */
  interface EngineRequest {
    /** 0, 1, 2 ... in order of appearance: its place in tables of this page. */
    number: number;
    /** Short, and the same in every tab: r1, r2 ... */
    name: string;
    /** 0, 1, 2 ...: the number of its colour. */
    hue: number;
    /** The engine's name of it. */
    req: string;
    /** Of its first event. */
    seq: number;
    /** The event req.add. */
    added: any | null;
    states: StateChange[];
    /** The event req.prefix. */
    prefix: any | null;
    /** The event req.ledger. */
    ledger: any | null;
    /** Events preempt. */
    preempts: any[];
    /** Events draft. */
    drafts: any[];
    /** Rows of the table of tokens, in order. */
    tokens: number[];
    /** The seq of each of them. */
    tokenSeqs: number[];
    /** The seq of each step that computed some of its tokens. */
    stepSeqs: number[];
    /** How many of its tokens had passed through the model after each of these steps. */
    passed: number[];
    /** How many the cache held then. */
    cached: number[];
  }

  interface StateChange {
    seq: number;
    t_us: number;
    step: number;
    from: string;
    to: string;
    reason: string;
    need_blocks?: number;
    free_blocks?: number;
    blocked_by?: string[];
    finish?: string;
  }

  /** A token with all that is known of its choice. */
  interface Token {
    seq: number;
    t_us: number;
    step: number;
    req: string;
    pos: number;
    id: number;
    /** What it added to the answer's text. */
    text: string;
    /** Log-probability by the model. */
    lp: number;
    /** Probability in the distribution that it was drawn from. */
    p_final: number;
    /** 0: nobody looked at the choice when it was made; what follows from it is not known. */
    rank: number;
    ent_bits: number;
    cand: { id: number; text: string; lp: number; p_final: number }[];
    rest_frac: number;
    funnel: { stage: string; kept: number; mass_frac: number }[];
    itl_us: number | null;
  }

  interface SamplingParams {
    temperature: number;
    /** 0: all. */
    top_k: number;
    top_p: number;
    min_p: number;
    typical_p?: number;
    repetition_penalty?: number;
    presence_penalty?: number;
    frequency_penalty?: number;
  }

  /** What a sampling stage left. */
  interface SamplingStage {
    stage: string;
    kept: number;
    /** Their probability in what entered the stage. */
    mass_frac: number;
    /** Probability of each token left, the likeliest first. */
    odds: Map<number, number>;
  }

  /** What the page asks of the worker: to read the stream of a server, or a recorded trace. */
  /** `reading`: a number that what the worker posts carries as well. */
  type WorkerOrder = { reading: number } & ({ kind: "live"; url: string; key: string } | { kind: "trace"; url: string; name: string });
  type StreamStatus = "connecting" | "open" | "ended" | "lost" | "refused";

  /** The address: the view, and what it is asked for. */
  interface Route {
    view: string;
    params: Record<string, string>;
  }

  /** A server-sent event. */
  interface EventFrame {
    id: string | null;
    data: string;
  }

  type ColumnKind = Float64ArrayConstructor | Int32ArrayConstructor | Uint8ArrayConstructor;

  /** What penalties act on. */
  interface TextBefore {
    /** Ids that the prompt has and the output has not. */
    promptIds: number[];
    /** Id, and how often it is in the output. */
    outputCounts: [number, number][];
  }

  // ---- pictures

  interface Palette {
    paper: string;
    panel: string;
    ink: string;
    ink2: string;
    ink3: string;
    line: string;
    line2: string;
    water: string;
    water2: string;
    /** Of probabilities. */
    odds: string;
    sun: string;
    sun2: string;
    coral: string;
    coral2: string;
    leaf: string;
    /** Six hues. */
    owners: string[];
    /** Font families. */
    ui: string;
    mono: string;
  }

  /** A recorded run, for a page where nothing has been generated yet. */
  interface FirstRun {
    model: string;
    /** Tokens of a block. */
    block_tok: number;
    /** Texts of the prompt's tokens. */
    prompt: string[];
    /** The new tokens: `us` of the forward pass that chose it, the likeliest candidates with their probabilities, and the positions that it read most with their weights. */
    tokens: { text: string; us: number; cand: [string, number][]; read: [number, number][] }[];
  }

  interface Surface {
    ctx: CanvasRenderingContext2D;
    /** In CSS pixels. */
    width: number;
    height: number;
    palette: Palette;
    /** Whether nothing is on it; else what `draw` drew last. */
    isFresh: boolean;
  }

  /** Cells of a picture that can be focused one by one: left and right go to the neighbours, up and down `columns` further. */
  /** What is said of a thing, and where it is in the window. */
  interface Tip {
    /** What it is said of. */
    of: Element;
    text: string;
    /** Its middle, or the pointer. */
    x: number;
    top: number;
    bottom: number;
  }

  interface Cells {
    count: number;
    columns: number;
    /** In words, for a screen reader. */
    describe(index: number): string;
    /** In CSS pixels. */
    rect(index: number): { x: number; y: number; width: number; height: number } | null;
    /** The cell at a point; -1: none. */
    hit(x: number, y: number): number;
    /** Enter, or a click. */
    choose?(index: number): void;
    /** Scrolls to a cell that the keyboard has gone to. */
    reveal?(index: number): void;
  }

  /** What the reader changes about the time that is shown. */
  interface TimeChanges {
    /** Closer (`by` below 1) or further away, around a moment. */
    zoom(by: number, around: number): void;
    /** Later, by a share of the span. */
    pan(by: number): void;
    choose(span: Span): void;
  }

  /** The data of a picture as a table: rows are made when they are shown. */
  interface Twin {
    columns: string[];
    rows(): (string | number)[][];
  }

  interface Line {
    name: string;
    /** Of a request or an arm. */
    hue: number;
    /** Never falling. */
    xs: number[];
    ys: number[];
    dashed?: boolean;
  }

  // ---- parts

  interface Formula {
    /** As people write it. */
    text: string;
    /** What each letter means, with its unit. */
    inputs: Record<string, string>;
    of(inputs: any): number;
    /** Paper or specification. */
    source?: string;
  }

  /** Where a number comes from. */
  interface Origin {
    /** Measured, counted exactly, estimated. */
    kind: "M" | "C" | "E";
    /** The event and field, or how it was measured. */
    from?: string;
    formula?: Omit<Formula, "of">;
    /** Of the formula, by its letters. */
    inputs?: Record<string, number | string | number[]>;
    /** One more sentence. */
    note?: string;
  }

  /** A figure of a table: how to read it from a column, and where it comes from. An empty value is shown as a dash. */
  type Figure = [label: string, value: (column: any) => string | undefined, origin: Origin | ((column: any) => Origin)];

  /** What a route replied. */
  interface Reply {
    reply: any | null;
    /** What the server said instead; "" if nothing. */
    problem: string;
  }

  interface Command {
    /** As in KeyboardEvent.key; "Shift+ArrowLeft" with the shift key. */
    keys: string[];
    /** What it does. */
    says: string;
    run(event: KeyboardEvent): void;
  }

  /** A token as a text shows it. */
  interface Piece {
    pos: number;
    id: number;
    text: string;
    /** The model's probability; below 0: of the prompt, which nobody chose; NaN: nobody looked. */
    p: number;
    isPrompt: boolean;
  }

  // ---- views

  /** The request and token that Generate looks at, as of the cursor. */
  interface Focus {
    request: EngineRequest;
    /** Empty if no event has told them. */
    promptIds: number[];
    promptTok: number;
    /** Output tokens so far. */
    count: number;
    /** The token looked at: the chosen one, else the newest. */
    pos: number;
    /** Whether somebody chose it. */
    isChosen: boolean;
    /** null: of the prompt, or none yet. */
    token: Token | null;
    state: StateChange | null;
    hasEnded: boolean;
  }
  type GenerateState = ReturnType<typeof import("./views/generate.js").generateState>;

  /** A candidate of a choice. */
  interface Candidate {
    id: number;
    text: string;
    /** Probability by the model. */
    p: number;
    /** Probability after the stages. */
    final: number;
  }

  /** A step's own logits under other parameters. */
  interface Look {
    /** A token whose choice nobody looked at, with its choice. */
    seen: Token | null;
    /** With other parameters. */
    stages: SamplingStage[] | null;
    us: number | null;
    problem: string;
  }

  /** Attention of one token, recomputed. */
  interface Looked {
    reply: any | null;
    /** By position, of the largest. */
    shares: Map<number, number> | undefined;
    problem: string;
    /** The position that looked back. */
    from: number;
  }

  /** A stretch of time in which a request was in one state. */
  interface RequestPhase {
    state: string;
    from: number;
    to: number;
  }

  /** What a step did for a request: a chunk of its prompt, a token, a round of drafts, or what it had lost. */
  type PassKind = "prefill" | "decode" | "round" | "again";
  type StepPart = "sched_us" | "fwd_us" | "sample_us" | "emit_us";

  /** A block of the prefix tree. */
  interface PrefixNode {
    block: number;
    hash: string;
    parent: number | null;
    index: number;
    refs: number;
    owners: string[];
    by: string;
    text: string;
  }

  /** Blocks that follow each other without a branch. */
  interface PrefixRun {
    nodes: PrefixNode[];
    depth: number;
  }

  /** Lines of code with the phases in which each is the one that takes the time. */
  type LoopCode = [string, ("prefill" | "decode" | "done" | "")?, "decode"?][];

  /** What drafts cost and brought. */
  interface DraftTimes {
    steps: number;
    rounds: number;
    right: number;
    /** Microseconds with drafts. */
    spent: number;
    /** Of the same tokens without. */
    withoutUs: number;
    speedup: number;
    /** Whether runs of one way differ as much. */
    isNoise?: boolean;
    k: number;
    c: number;
    v: number;
    wonUs?: number;
  }
  type DraftLetter = "a" | "k" | "c" | "v";

  /** A stretch of time, in microseconds since the engine's start. */
  interface Span {
    from: number;
    to: number;
  }

  /** One way of doing the work of a comparison: its steps as columns. */
  interface Arm {
    name: string;
    /** From 0, for its hue. */
    number: number;
    useKvCache: boolean;
    /** Its first request, for what tokens read; "": the engine does not know. */
    req: string;
    /** Output tokens after each step. */
    tokens: number[];
    /** Tokens passed so far. */
    passed: number[];
    flops: number[];
    /** Bytes. */
    moved: number[];
    stepUs: number[];
    timeUs: number[];
    /** Between this step and the next. */
    heldBytes: number[];
    /** What each step added to the first request's text. */
    texts: string[];
    /** Of each of its output tokens; several requests are mixed. */
    ids: number[];
    /** Their probabilities by the model. */
    odds: number[];
    /** The time of each run; all else is of the first one. */
    runsUs: number[];
  }

  interface Comparison {
    kind: string;
    arms: Arm[];
    /** Requests of each arm. */
    requests: number;
    promptIds: number[];
    promptTok: number;
    /** Of each answer. */
    maxTokens: number;
    /** The event cmp.end. */
    end: any | null;
    isRunning: boolean;
  }
  type CompareState = ReturnType<typeof import("./compare/loops.js").compareState>;

  type SpeculateState = ReturnType<typeof import("./speculate/drafts.js").speculateState>;

  /** A request of a load. Times are -1 while they lie ahead. */
  interface Lane {
    index: number;
    /** The engine's name; "" before it is sent. */
    req: string;
    /** When it arrived. */
    dueUs: number;
    sentUs: number;
    firstUs: number;
    endUs: number;
    state: "planned" | "sent" | "first" | "done" | "failed";
    promptTok: number;
    wantedTok: number;
    tokens: number;
    cachedTok: number;
    message: string;
  }

  interface Load {
    discipline: "continuous" | "static";
    /** By index. */
    lanes: Lane[];
    /** Of the newest event. */
    nowUs: number;
    /** The event load.end. */
    end: any | null;
    isRunning: boolean;
  }
  type ServeState = ReturnType<typeof import("./serve/load.js").serveState>;

  /** A number of the server's estimate. */
  interface Estimated {
    name: string;
    value: number;
    unit: string;
    provenance: "M" | "C" | "E";
    formula: string;
    inputs: Record<string, number | string>;
  }

  interface Estimate {
    model: string;
    machine: {
      name: string;
      provenance: "M" | "E";
      bandwidth_bytes_per_second: number;
      flops_per_second: number;
      memory_bytes: number;
    };
    machines: string[];
    shapes: string[];
    numbers: Estimated[];
  }
  type PlanState = ReturnType<typeof import("./plan/estimate.js").planState>;

  /** A step of this session beside what the formula gives for its own operations and bytes. */
  interface MeasuredStep {
    kind: "prefill" | "decode" | "mixed";
    step: number;
    /** Of the forward pass. */
    us: number;
    predictedUs: number;
    flops: number;
    bytes: number;
  }

  // ---- lessons

  interface Lesson {
    id: string;
    title: string;
    /** To keep in mind. */
    points: string[];
    /** What the guess is about. */
    scene: any;
    /** What the run has shown. */
    text: any;
    /** Something to try before all. */
    Opening?(props: { session: Session }): any;
    /** Whether a word's meaning matters, so that the recorded run of a larger model comes first. */
    isAboutMeaning?: boolean;
    predict: Question;
    /** The view in which one can go on, and with what. */
    goOn: [view: string, what: string];
    /** What the button says. */
    action: string;
    /** Gives the numbers of the run, which JSON can hold. */
    run(session: Session): Promise<any>;
    /** What the run cost, for the record. */
    took(result: any): string;
    /** The film of the run: whether it plays by itself, and what to do when its end is seen. */
    Show(props: { result: any; plays: boolean; onEnd: () => void }): any;
    check: Question;
  }

  /** A number that lessons often get wrong. */
  interface Correction {
    claim: string;
    verdict: string;
    formula: Formula;
    inputs: Record<string, number | number[]>;
    /** What the formula gives, in words. */
    number(value: number): string;
    /** Counted, unless it rests on an assumption about the machine or the guesses. */
    kind?: "E";
  }

  /** A question whose answer a run gives. */
  interface Question {
    /** A text, or a function of the run's numbers. */
    ask: any;
    /** Key and text: nothing is to be computed. */
    options: [string, string][];
    /** The key of the right one. */
    answer(result: any): string;
    /** Why it is so, with the numbers in it. */
    explain(result: any): any;
  }

  /** What is remembered of a lesson. */
  interface Progress {
    predicted?: string;
    checked?: string;
    result?: any;
    isRecorded?: boolean;
    when?: string;
    engine?: string;
  }

  /** A text that ran on the engine. */
  interface RunFact {
    req: string;
    promptTok: number;
    /** Texts of tokens. */
    prompt: string[];
    output: string[];
    /** Of all tokens. */
    ids: number[];
    /** Tokens of the request in each step, and of its text up to there; the texts of those that it chose. */
    steps: { step: number; q: number; ctx: number; us: number; made: string[] }[];
    /** From its arrival to the first token. */
    firstUs: number;
    /** The median between tokens. */
    eachUs: number;
    totalUs: number;
  }

  // ---- Chat

  interface TextFile {
    name: string;
    text: string;
  }

  /** A call of a tool; the arguments are JSON as the model wrote it. */
  interface ToolCall {
    id: string;
    name: string;
    arguments: string;
  }

  /** What is said in a conversation. */
  interface Message {
    id: string;
    /** Its conversation's id. */
    conversation: string;
    /** The message before it; "": it is the first. */
    parent: string;
    role: "user" | "assistant" | "tool";
    /** Of an answer: Markdown. */
    text: string;
    /** Milliseconds of the clock, later than those of all messages that were there before. */
    at: number;
    /** Of an answer; all others are whole. */
    status: "writing" | "whole" | "stopped" | "failed";
    files?: TextFile[];
    reasoning?: string;
    calls?: ToolCall[];
    /** Of a tool's result: the call. */
    callId?: string;
    seed?: number;
    /** "": the server's own. */
    model?: string;
    finish?: string;
    /** Why it failed. */
    problem?: string;
    /** Tokens that it had when somebody had it go on. */
    goneOn?: number;
    /** Tokens: of the prompt, of them found in the cache, of the answer. */
    usage?: { prompt: number; cached: number; output: number };
    /** The requests that wrote it: the engine's name, its run, and where in the text each began. */
    parts?: { req: string; boot: string; from: number }[];
  }

  /** Sampling; what is left out is the model's own. */
  interface ChatParams {
    temperature?: number;
    top_p?: number;
    top_k?: number;
    min_p?: number;
    max_tokens?: number;
    seed?: number;
  }

  interface Conversation {
    id: string;
    /** "": nothing has been said yet. */
    title: string;
    made: number;
    changed: number;
    /** The message with which the shown branch ends; "": none. */
    leaf: string;
    /** What somebody has begun to write. */
    draft: string;
    system: string;
    /** "": the server's own. */
    model: string;
    params: ChatParams;
    /** JSON: a list of tools; "": none. */
    tools: string;
  }

  /** What is looked at beside a conversation. */
  interface Inside {
    what: "conversation" | "slow" | "token";
    /** The answer's id. */
    message: string;
    /** Where in its text. */
    at: number;
  }
  type Chat = ReturnType<typeof import("./chat/state.js").chatState>;
}
