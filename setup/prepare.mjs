// Brings this machine to where `src/cli.ts` can run: `node setup/prepare.mjs [command]`. Runs on any Node from 18 on
// and needs no package, for it is what installs them. Every step is said before it is done and skipped when it is
// already right, so that it may be run any number of times. docs/decisions/0001-node-and-setup.md has the reasons.
import { fileURLToPath } from 'node:url'
import { ensureNodePackages } from './node-packages.mjs'
import { runMain } from './say.mjs'
import { ensureSystemPackages } from './system-packages.mjs'

/** The commands that run sandboxes on this machine, and so need the system's programs. */
const commandsThatRunSandboxes = new Set(['up', 'worker'])

await runMain(() => {
  ensureNodePackages(fileURLToPath(new URL('..', import.meta.url)))
  if (commandsThatRunSandboxes.has(process.argv[2] ?? '')) ensureSystemPackages()
  return 0
})
