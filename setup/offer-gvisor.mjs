// Offers to install gVisor, which isolates sandboxes more strongly than a container does. Nothing is installed unless the
// user says so on a terminal.
import { spawnSync } from 'node:child_process'
import { closeSync, existsSync, openSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { aptGet } from './apt-get.mjs'
import { findProgram } from './find-program.mjs'
import { say } from './say.mjs'

/** The first release that the `oci` driver accepts: see `src/worker/drivers/oci/run/runtime/runtime.ts`. */
const firstUsableRelease = 20240729
/** How long to wait for an answer. Without one, nothing is installed, so an unattended start isn't held up for long. */
const answerMs = 30_000
const install = ['install', '-y', '--no-install-recommends', 'runsc']

/**
 * Offers Debian's package `runsc` to root, if this machine has neither gVisor nor virtualization and apt has a release
 * that works. On a terminal it asks once, and a no is remembered in `.setup`. Elsewhere it prints the command.
 */
export async function offerGvisor(root) {
  if (process.platform !== 'linux' || process.getuid?.() !== 0 || process.env.SANDYARD_SETUP === 'skip') return
  if (!['', 'auto', 'runsc'].includes(process.env.SANDYARD_RUNTIME ?? '')) return
  if (hasVirtualization() || ['runsc', 'kata-runtime'].some((name) => findProgram(name) !== undefined)) return
  const version = readCandidate()
  if (version === undefined) return
  const declined = join(root, '.setup', 'gvisor-declined')
  const command = `apt-get ${install.join(' ')}`
  if (existsSync(declined) || !process.stdin.isTTY || !process.stderr.isTTY) {
    say(`gVisor (Debian's runsc ${version}) would isolate sandboxes more strongly. To install it: ${command}`)
    return
  }
  say(
    `gVisor (Debian's runsc ${version}) isolates sandboxes more strongly than the containers of this machine. It costs ` +
      'speed, and sudo does not work in its sandboxes (docs/drivers.md).',
  )
  const answer = await ask(`Install it now by ${command}? [y/N] `)
  if (answer === undefined) return say('no answer; it is not installed')
  if (!/^y(es)?$/i.test(answer.trim())) return writeFileSync(declined, '')
  const failure = aptGet(install)
  say(failure === undefined ? 'installed runsc' : `that failed, and nothing changed. apt-get printed:\n${failure}`)
}

/** Whether microVMs may run here, which isolate more strongly than gVisor. The driver `microsandbox` tests the same. */
function hasVirtualization() {
  try {
    closeSync(openSync('/dev/kvm', 'r+'))
    return process.arch !== 'x64' || /^flags\s*:.*\b(?:vmx|svm)\b/m.test(readFileSync('/proc/cpuinfo', 'utf8'))
  } catch {
    return false
  }
}

/** The version of `runsc` that apt would install. Undefined if there is none, or if the driver would refuse it. */
function readCandidate() {
  if (findProgram('apt-get') === undefined) return undefined
  const { stdout } = spawnSync('apt-cache', ['policy', 'runsc'], {
    env: { ...process.env, LC_ALL: 'C' },
    stdio: ['ignore', 'pipe', 'ignore'],
    encoding: 'utf8',
    timeout: 10_000,
  })
  const version = /^ *Candidate: (\S+)/m.exec(stdout ?? '')?.[1]
  const release = Number(/\d{8}/.exec(version ?? '')?.[0] ?? 0)
  return release >= firstUsableRelease ? version : undefined
}

/** Asks on the terminal. Resolves with undefined if there is no answer. */
async function ask(question) {
  const lines = createInterface({ input: process.stdin, terminal: false })
  process.stderr.write(question)
  try {
    return await new Promise((resolve) => {
      const timer = setTimeout(resolve, answerMs)
      lines.once('line', resolve)
      lines.once('close', () => {
        clearTimeout(timer)
        resolve(undefined)
      })
    })
  } finally {
    lines.close()
    process.stdin.destroy()
  }
}
