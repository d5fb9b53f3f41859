// What the server tells at each look: as in src/lockstitch/dashboard/values.py.

export interface Row {
  key: string;
  name: string;
  rank: string;
  host: string;
  pid: number;
  state: "ok" | "silent" | "starting" | "ended" | "gone";
  numbers: Record<string, number>;
  why: string;
  since: number | null;
  main: string;
}

export interface Edge {
  caller: string;
  callee: string;
  calls: number;
  bytes: number;
  pending: number;
}

export interface FunctionCalls {
  function: string;
  calls: number;
  failed: number;
  calls_per_second: number;
  bytes_per_second: number;
  p50_seconds: number;
  p99_seconds: number;
}

export interface Paragraph {
  kind: "cycle" | "culprit" | "nothing" | "worker";
  lines: string[];
}

/** What a chart of a value of `observe.step` is called, before its name. */
export const VALUE = "value: ";

export interface Point {
  at: number;
  values: Record<string, Record<string, number>>;
}

export interface State {
  name: string;
  pid: number;
  at: number;
  started_at: number;
  job_state: string;
  rows: Row[];
  edges: Edge[];
  functions: FunctionCalls[];
  waits: Paragraph[];
  contexts: number[];
  unreached: string[];
  ended_at: number | null;
}

export interface Told {
  state: State;
  points: Point[];
}

/** One view of the page. `update` is called for each look while it is shown, and when it is opened. */
export interface View {
  readonly element: HTMLElement;
  update(state: State, points: readonly Point[]): void;
}
