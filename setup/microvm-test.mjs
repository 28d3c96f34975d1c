// `npm run test:microvm [-- TEST-FILE…]`: runs the tests of microVMs where no virtualization is, in a guest of QEMU's
// whose emulated processor has AMD's, so that the guest's Linux offers /dev/kvm. Slow; CONTRIBUTING.md says how slow.
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

/** What needs a microVM and is proved nowhere else. */
const microvmTests = [
  'test/worker/drivers/microsandbox.test.ts',
  'test/worker/drivers/microsandbox/guest.test.ts',
  'test/e2e/microsandbox.test.ts',
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
    say('booting the guest; the tests are slow there, and all of them may take 40 minutes at most')
    return await runGuest({ base, projectDisk, folder })
  } finally {
    rmSync(folder, { recursive: true })
  }
})

function whyNot() {
  if (process.platform !== 'linux' || process.arch !== 'x64') return 'the guest is for x64 Linux hosts only'
  if (findProgram('apt-get') === undefined) return 'there is no apt-get to fetch the guest with'
  if (process.getuid?.() !== 0) return "only root can make the guest's disk"
  if (findProgram(qemu) === undefined && process.env.SANDYARD_SETUP === 'skip')
    return 'QEMU is missing, and SANDYARD_SETUP=skip refuses to install it'
  return undefined
}

function ensureQemu() {
  if (findProgram(qemu) !== undefined) return
  const install = ['install', '-y', '--no-install-recommends', 'qemu-system-x86']
  say(`installing QEMU from the distribution (20 MB): apt-get ${install.join(' ')} (SANDYARD_SETUP=skip refuses this)`)
  const failure = aptGetFresh(install)
  if (failure !== undefined) throw new SetUpFailure(`QEMU could not be installed; apt-get said:\n${failure}`)
}
