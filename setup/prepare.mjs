// `node setup/prepare.mjs [command]` installs the dependencies of the program, and prints the path of its first file on standard output.
// It runs on Node 18 or newer and needs no packages. It says each step before running it and skips steps that are already done, so you can
// run it any number of times. docs/decisions/0001-node-and-setup.md has the reasons.
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { programOf } from './built-program.mjs'
import { dashboardOf } from './dashboard.mjs'
import { ensureBuilt } from './ensure-built.mjs'
import { completeInstalledPackage, isInstalledPackage } from './installed-package.mjs'
import { ensureNodePackages } from './node-packages.mjs'
import { offerGvisor } from './offer-gvisor.mjs'
import { runMain } from './say.mjs'
import { ensureSystemPackages } from './system-packages.mjs'

/** The commands that serve the API, and the dashboard with it. */
const commandsThatServe = new Set(['up', 'serve'])
/** The commands whose processes stay. The others use the built program if there is one. */
const commandsThatStay = new Set([...commandsThatServe, 'worker'])
/** The commands that run sandboxes on this machine. They need system packages. */
const commandsThatRunSandboxes = new Set(['up', 'worker'])

await runMain(async () => {
  const root = fileURLToPath(new URL('..', import.meta.url))
  const command = process.argv[2] ?? ''
  const runsSandboxes = commandsThatRunSandboxes.has(command)
  process.stdout.write(isInstalledPackage(root) ? installed(root, runsSandboxes) : cloned(root, command))
  if (!runsSandboxes) return 0
  ensureSystemPackages()
  await offerGvisor(root)
  return 0
})

function installed(root, runsSandboxes) {
  completeInstalledPackage(root, { runsSandboxes })
  return join(root, 'dist', 'cli.js') // Node runs no TypeScript beneath `node_modules`
}

function cloned(root, command) {
  ensureNodePackages(root, { isDevelopment: false })
  const program = programOf(root)
  const isServed = commandsThatServe.has(command) && process.env['SANDYARD_DASHBOARD'] !== 'off'
  if (commandsThatStay.has(command)) ensureBuilt(root, [...(isServed ? [dashboardOf(root)] : []), program])
  return program.isBuilt() ? program.file : join(root, 'src', 'cli.ts')
}
