// Elements made and changed in place: what has not changed is left alone, so that what the reader
// has selected or scrolled to stays. Text is only ever set as text, never as markup.

type Child = Node | string;
type Properties = Record<string, string | boolean | ((event: Event) => void)>;

export function make<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  properties: Properties = {},
  ...children: Child[]
): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (typeof value === "function") element.addEventListener(name, value);
    else if (typeof value === "boolean") element.toggleAttribute(name, value);
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

export function setText(element: Element, text: string): void {
  if (element.textContent !== text) element.textContent = text;
}

export function setAttribute(element: Element, name: string, value: string | null): void {
  if (value === null) element.removeAttribute(name);
  else if (element.getAttribute(name) !== value) element.setAttribute(name, value);
}

/** Makes `children` the children of `parent`, moving as few of them as possible. */
export function setChildren(parent: Element, children: Element[]): void {
  const kept = new Set<Element>(children);
  for (const child of [...parent.children]) if (!kept.has(child)) child.remove();
  children.forEach((child, place) => {
    if (parent.children[place] !== child) parent.insertBefore(child, parent.children[place] ?? null);
  });
}

/** Elements by key, made when they are first asked for. `rest` forgets the others. */
export class Keyed<T extends Element> {
  private known = new Map<string, T>();
  private used = new Map<string, T>();

  constructor(private readonly create: (key: string) => T) {}

  get(key: string): T {
    const element = this.known.get(key) ?? this.create(key);
    this.known.set(key, element);
    this.used.set(key, element);
    return element;
  }

  rest(): void {
    this.known = this.used;
    this.used = new Map();
  }
}
