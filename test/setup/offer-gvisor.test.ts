import assert from 'node:assert/strict'
import { chmodSync, existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { delimiter, join } from 'node:path'
import { after, before, test } from 'node:test'
import { spawn } from '@lydell/node-pty'
import { tryCommand } from '../../src/lib/run-command.ts'
import { findMissingMicroVmRequirements } from '../../src/worker/drivers/microsandbox/installation.ts'
import { ROOT } from '../support/documents.ts'
import { waitUntil } from '../support/wait.ts'

// `npm start` offers to install gVisor. The machine of the test has an apt that only writes down what it is asked for.

const SYSTEM = ['/usr/local/sbin', '/usr/local/bin', '/usr/sbin', '/usr/bin', '/sbin', '/bin']
const hasKvm = !(await findMissingMicroVmRequirements()).some((what) => /kvm|virtualization/.test(what))
const hasStronger = hasKvm || SYSTEM.some((path) => existsSync(join(path, 'runsc')))
const skip = process.getuid?.() !== 0 ? 'only root is asked' : hasStronger ? 'this machine has gVisor or kvm' : false

let root: string
before(() => {
  root = mkdtempSync(join(tmpdir(), 'sandyard-offer-'))
})
after(() => rmSync(root, { recursive: true }))

let machines = 0
/** Makes a machine whose apt has this version of `runsc`. */
function makeMachine(version: string) {
  const home = join(root, String(machines++))
  const bin = join(home, 'bin')
  mkdirSync(bin, { recursive: true })
  mkdirSync(join(home, '.setup'))
  const put = (name: string, script: string): void => {
    writeFileSync(join(bin, name), `#!/bin/sh\n${script}\n`)
    chmodSync(join(bin, name), 0o755)
  }
  put('apt-cache', `printf 'runsc:\\n  Installed: (none)\\n  Candidate: ${version}\\n'`)
  put('apt-get', `echo "$@" >> ${home}/asked; printf '#!/bin/sh\\n' > ${bin}/runsc; chmod 755 ${bin}/runsc`)
  const { SANDYARD_SETUP: _, SANDYARD_RUNTIME: __, ...rest } = process.env
  const env = { ...rest, PATH: [bin, ...SYSTEM].join(delimiter) }
  const script = `import('${join(ROOT, 'setup/offer-gvisor.mjs')}').then((it) => it.offerGvisor('${home}'))`
  return {
    asked: () => (existsSync(join(home, 'asked')) ? readFileSync(join(home, 'asked'), 'utf8') : ''),
    /** Starts without a terminal, and returns what it prints. */
    async start(more: Readonly<Record<string, string>> = {}) {
      const options = { timeoutMs: 30_000, env: { ...env, ...more } }
      return (await tryCommand(process.execPath, ['-e', script], options)).stderr
    },
    /** Starts on a terminal, types the answer to the question, and returns what was shown. */
    async startOnTerminal(answer: string) {
      const terminal = spawn(process.execPath, ['-e', script], { cols: 400, env })
      let shown = ''
      let code: number | null = null
      terminal.onData((text) => {
        shown += text
      })
      terminal.onExit(({ exitCode }) => {
        code = exitCode
      })
      await waitUntil(() => shown.includes('[y/N]') || code !== null)
      if (code === null) terminal.write(answer)
      await waitUntil(() => code !== null)
      assert.equal(code, 0, shown)
      return shown
    },
  }
}

test('without a terminal, the start says how to install gVisor, and installs nothing', { skip }, async () => {
  const machine = makeMachine('0.0~20240729.0-4+b7')
  assert.match(await machine.start(), /more strongly.*apt-get install -y --no-install-recommends runsc/)
  assert.equal(machine.asked(), '')
})

test('on a terminal, gVisor is installed after a yes only, and a no is remembered', { skip }, async () => {
  const agrees = makeMachine('0.0~20240729.0-4+b7')
  assert.match(await agrees.startOnTerminal('y\r'), /installed runsc/)
  assert.match(agrees.asked(), /install -y --no-install-recommends runsc\n$/)
  assert.equal(await agrees.start(), '') // it is installed now
  for (const answer of ['\r', 'n\r', '\x04']) {
    const declines = makeMachine('0.0~20250101.0-1')
    await declines.startOnTerminal(answer)
    assert.equal(declines.asked(), '')
    if (answer !== '\x04') assert.doesNotMatch(await declines.startOnTerminal('y\r'), /\[y\/N\]/)
    assert.equal(declines.asked(), '')
  }
})

test('nothing is offered if apt has no release that works, or another runtime is chosen', { skip }, async () => {
  for (const version of ['0.0~20221219.0-2+b3', '(none)', '0.0~20240728.0-1'])
    assert.equal(await makeMachine(version).start(), '', version)
  const machine = makeMachine('0.0~20240729.0-4+b7')
  assert.equal(await machine.start({ SANDYARD_SETUP: 'skip' }), '')
  assert.equal(await machine.start({ SANDYARD_RUNTIME: 'crun' }), '')
})

test('the offer and the driver agree on the first release that works', () => {
  const releaseIn = (path: string, name: string): string | undefined =>
    new RegExp(`const ${name} = (\\d{8})`).exec(readFileSync(join(ROOT, path), 'utf8'))?.[1]
  const offered = releaseIn('setup/offer-gvisor.mjs', 'firstUsableRelease')
  assert.ok(offered !== undefined)
  assert.equal(releaseIn('src/worker/drivers/oci/run/runtime/runtime.ts', 'FIRST_USABLE_RUNSC'), offered)
})
