// `npm run test:microvm [-- TEST-FILE…]`: runs the tests of microVMs on a machine without virtualization. They run in a
// QEMU guest whose emulated processor supports AMD's virtualization, so the guest has /dev/kvm. CONTRIBUTING.md says
// how slow this is.
import { mkdtempSync, rmSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { aptGetFresh } from './apt-get.mjs'
import { findProgram } from './find-program.mjs'
import { ensureBase, makeProjectDisk } from './microvm/disks.mjs'
import { runGuest } from './microvm/guest.mjs'
import { ensureNodePackages } from './node-packages.mjs'
import { runMain, say, SetUpFailure } from './say.mjs'
import { withSetUpLock } from './set-up-lock.mjs'

/** The tests that need a microVM. */
const microvmTests = [
  'test/worker/drivers/microsandbox.test.ts',
  'test/worker/drivers/microsandbox/guest.test.ts',
  'test/e2e/microsandbox.test.ts',
  'test/e2e/microsandbox-network.test.ts',
  'test/e2e/microsandbox-ports.test.ts',
  'test/e2e/microsandbox-served.test.ts',
]

const qemu = 'qemu-system-x86_64'
const root = fileURLToPath(new URL('..', import.meta.url))
const cache = join(root, '.setup', 'microvm')

await runMain(async () => {
  const reason = whyNot()
  if (reason !== undefined) {
    say(`NOTHING WAS TESTED: ${reason}`)
    return 2
  }
  ensureNodePackages(root)
  ensureQemu()
  const base = withSetUpLock(cache, () => ensureBase(root, cache))
  const folder = mkdtempSync(join(cache, 'run-'))
  try {
    const given = process.argv.slice(2)
    const projectDisk = makeProjectDisk(root, given.length === 0 ? microvmTests : given, folder)
    say('booting the guest; the tests are slow there, with a limit of 40 minutes for all of them')
    return await runGuest({ base, projectDisk, folder })
  } finally {
    rmSync(folder, { recursive: true })
  }
})

function whyNot() {
  if (process.platform !== 'linux' || process.arch !== 'x64') return 'the guest is for x64 Linux hosts only'
  if (findProgram('apt-get') === undefined) return 'apt-get is missing, which fetches the guest'
  if (process.getuid?.() !== 0) return "only root can create the guest's disk"
  if (findProgram(qemu) === undefined && process.env.SANDYARD_SETUP === 'skip')
    return 'QEMU is missing, and SANDYARD_SETUP=skip forbids installing it'
  return undefined
}

function ensureQemu() {
  if (findProgram(qemu) !== undefined) return
  const install = ['install', '-y', '--no-install-recommends', 'qemu-system-x86']
  say(`installing QEMU from the distribution (20 MB): apt-get ${install.join(' ')} (SANDYARD_SETUP=skip prevents this)`)
  const failure = aptGetFresh(install)
  if (failure !== undefined) throw new SetUpFailure(`QEMU could not be installed; apt-get said:\n${failure}`)
}
