// Bundles the page into src/lockstitch/dashboard/static, or into the folder that is named, and says
// out of which sources it was made: a test of the quick suite compares that with the sources.

import { createHash } from "node:crypto";
import { copyFileSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
const output = process.argv[2] ?? join(here, "../../src/lockstitch/dashboard/static");
mkdirSync(output, { recursive: true });

await build({
  entryPoints: { page: join(here, "src/main.ts") },
  bundle: true,
  minify: true,
  format: "esm",
  target: "es2022",
  legalComments: "none",
  outdir: output,
});
for (const name of ["index.html", "icon.svg"]) copyFileSync(join(here, "src", name), join(output, name));

// What of other projects is in the bundle, with their licences.
const bundled = Object.keys(JSON.parse(readFileSync(join(here, "package.json"))).dependencies);
const notices = bundled.map((name) => {
  const folder = join(here, "node_modules", name);
  const { version } = JSON.parse(readFileSync(join(folder, "package.json")));
  return `${name} ${version}\n\n${readFileSync(join(folder, "LICENSE"), "utf8").trim()}\n`;
});
writeFileSync(join(output, "LICENSES.txt"), notices.join("\n\n"));

const sources = [
  "build.mjs",
  "package.json",
  "package-lock.json",
  ...readdirSync(join(here, "src")).sort().map((name) => `src/${name}`),
];
const hash = createHash("sha256");
for (const name of sources) hash.update(`${name}\0`).update(readFileSync(join(here, name)));
writeFileSync(join(output, "sources.sha256"), `${hash.digest("hex")}\n`);
