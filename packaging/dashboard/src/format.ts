// Numbers and times as people read them.

const WHOLE = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const SHORTER = new Intl.NumberFormat("en", { maximumSignificantDigits: 2 });
const SHORT = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });

export function number(value: number): string {
  if (Math.abs(value) < 10) return SHORTER.format(value);
  return Math.abs(value) < 100 ? SHORT.format(value) : WHOLE.format(value);
}

export function bytes(count: number): string {
  for (const unit of ["B", "kB", "MB", "GB"]) {
    if (Math.abs(count) < 999.5) {
      return `${unit === "GB" && count < 100 ? count.toFixed(1) : count.toFixed(0)} ${unit}`;
    }
    count /= 1000;
  }
  return `${count.toFixed(1)} TB`;
}

/** A number that a program tells, such as a loss. */
export function significant(value: number): string {
  return Number(value.toPrecision(4)).toString();
}

export function percent(share: number): string {
  return `${(100 * share).toFixed(0)} %`;
}

/** A short time, as latencies are. */
export function brief(seconds: number): string {
  if (seconds < 1e-3) return `${SHORT.format(seconds * 1e6)} µs`;
  if (seconds < 1) return `${SHORT.format(seconds * 1e3)} ms`;
  return `${SHORT.format(seconds)} s`;
}

/** A time span: `42 s`, `3 min 5 s`, `2 h 10 min`, `3 d 4 h`. */
export function span(seconds: number): string {
  const whole = Math.max(0, Math.floor(seconds));
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  if (whole < 86400) return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
  return `${Math.floor(whole / 86400)} d ${Math.floor((whole % 86400) / 3600)} h`;
}

/** A function without its module's name, where that says nothing. */
export function shortName(name: string): string {
  return name.replace(/^__main__:/, "");
}

export function clock(at: number): string {
  return new Date(at * 1000).toLocaleTimeString("en-GB");
}

export function plural(count: number, what: string): string {
  return `${WHOLE.format(count)} ${what}${count === 1 ? "" : "s"}`;
}
