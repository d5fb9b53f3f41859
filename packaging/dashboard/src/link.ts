// The connection to the command: server-sent events, read by `fetch`, since only that can send the
// token as a header. It connects again when it is lost, until the job has ended.

import type { Told } from "./state";

const AGAIN_MS = 1000;
const SILENT_MS = 20_000;
const TOKEN = "lockstitch-token";

export type Link = "waiting" | "live" | "lost" | "refused" | "ended";

/** Takes the token out of the address, where it could be read by others and be bookmarked. */
export function takeToken(): void {
  const address = new URL(location.href);
  const token = address.searchParams.get("token");
  if (token === null) return;
  sessionStorage.setItem(TOKEN, token);
  address.searchParams.delete("token");
  history.replaceState(null, "", address);
}

export function ask(path: string, options: RequestInit = {}): Promise<Response> {
  const authorization = `Bearer ${sessionStorage.getItem(TOKEN) ?? ""}`;
  return fetch(path, { ...options, headers: { authorization } });
}

export async function follow(
  hear: (told: Told, isFirst: boolean) => void,
  note: (link: Link) => void,
): Promise<void> {
  let isOver = false;
  while (!isOver) {
    const abort = new AbortController();
    try {
      const answer = await ask("/api/events", { signal: abort.signal });
      if (answer.status === 403) {
        note("refused");
        return;
      }
      if (!answer.ok || answer.body === null) throw new Error(`status ${answer.status}`);
      let isFirst = true;
      for await (const told of events(answer.body, abort)) {
        isOver = told.state.ended_at !== null;
        note(isOver ? "ended" : "live");
        hear(told, isFirst);
        isFirst = false;
      }
    } catch {
      // Lost, as is told below; whatever the reason is, it is tried again.
    } finally {
      abort.abort();
    }
    if (!isOver) {
      note("lost");
      await new Promise((resolve) => setTimeout(resolve, AGAIN_MS));
    }
  }
}

async function* events(body: ReadableStream<Uint8Array>, abort: AbortController): AsyncGenerator<Told> {
  const reader = body.pipeThrough(new TextDecoderStream() as ReadableWritablePair<string, Uint8Array>).getReader();
  let rest = "";
  while (true) {
    const timer = setTimeout(() => abort.abort(), SILENT_MS);
    const { value, done } = await reader.read().finally(() => clearTimeout(timer));
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop() ?? "";
    for (const part of parts) {
      if (part.startsWith("data: ")) yield JSON.parse(part.slice("data: ".length)) as Told;
    }
  }
}
