// `node setup/prepare.mjs [command]` installs what `src/cli.ts` needs. It runs on Node 18 or newer and needs no packages. It
// prints each step first and skips the steps that are done already, so it may run any number of times.
// docs/decisions/0001-node-and-setup.md has the reasons.
import { fileURLToPath } from 'node:url'
import { ensureNodePackages } from './node-packages.mjs'
import { runMain } from './say.mjs'
import { ensureSystemPackages } from './system-packages.mjs'

/** The commands that run sandboxes on this machine, and therefore need system packages. */
const commandsThatRunSandboxes = new Set(['up', 'worker'])

await runMain(() => {
  ensureNodePackages(fileURLToPath(new URL('..', import.meta.url)))
  if (commandsThatRunSandboxes.has(process.argv[2] ?? '')) ensureSystemPackages()
  return 0
})
