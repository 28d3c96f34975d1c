// `node setup/prepare.mjs [command]` installs the dependencies of the program. It runs on Node 18 or newer and needs
// no packages. It prints each step before running it and skips steps that are already done, so you can run it any
// number of times. docs/decisions/0001-node-and-setup.md has the reasons.
import { fileURLToPath } from 'node:url'
import { ensureDashboard } from './dashboard.mjs'
import { completeInstalledPackage, isInstalledPackage } from './installed-package.mjs'
import { ensureNodePackages } from './node-packages.mjs'
import { offerGvisor } from './offer-gvisor.mjs'
import { runMain } from './say.mjs'
import { ensureSystemPackages } from './system-packages.mjs'

/** The commands that serve the API, and the dashboard with it. */
const commandsThatServe = new Set(['up', 'serve'])
/** The commands that run sandboxes on this machine. They need system packages. */
const commandsThatRunSandboxes = new Set(['up', 'worker'])

await runMain(async () => {
  const root = fileURLToPath(new URL('..', import.meta.url))
  const runsSandboxes = commandsThatRunSandboxes.has(process.argv[2] ?? '')
  if (isInstalledPackage(root)) completeInstalledPackage(root, { runsSandboxes })
  else {
    ensureNodePackages(root, { isDevelopment: false })
    const isServed = process.env['SANDYARD_DASHBOARD'] !== 'off'
    if (isServed && commandsThatServe.has(process.argv[2] ?? '')) ensureDashboard(root)
  }
  if (!runsSandboxes) return 0
  ensureSystemPackages()
  await offerGvisor(root)
  return 0
})
