import assert from 'node:assert/strict'
import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { basename, join } from 'node:path'
import { test } from 'node:test'
import { makeProgram } from '../../src/cli/program.ts'
import { settingRows } from '../../src/config.ts'
import { runCommand, tryCommand } from '../../src/lib/run-command.ts'
import { findMissingPrograms } from '../../src/worker/drivers/shared/machine.ts'
import { assertNone, ROOT } from '../support/documents.ts'

// The systemd units and their settings, as systemd itself judges them.

const LIMIT_MS = 30_000
const FOLDER = join(ROOT, 'packaging/systemd')
const FILES = readdirSync(FOLDER).map((name) => join(FOLDER, name))
const UNITS = FILES.filter((path) => path.endsWith('.service'))
/**
 * The highest exposure that `systemd-analyze security` may find. A worker's is high by nature: it mounts, makes namespaces
 * and gives its rights to sandboxes. Measured with systemd 252: 1.6 and 8.2.
 */
const EXPOSURE: Readonly<Record<string, number>> = {
  'sandyard-server.service': 20,
  'sandyard-worker.service': 85,
  'sandyard.service': 85,
}
const whyNot =
  findMissingPrograms(['systemd-analyze']).length > 0 ? 'systemd-analyze is missing: apt-get install systemd' : false

test('systemd accepts each unit', { skip: whyNot }, async () => {
  const folder = mkdtempSync(join(tmpdir(), 'sandyard-units-'))
  try {
    for (const path of UNITS) {
      const unit = join(folder, basename(path))
      // systemd-analyze checks that the program exists, and it exists only where the package is installed.
      writeFileSync(unit, readFileSync(path, 'utf8').replace('/usr/bin/sandyard', '/bin/true'))
      const { code, stdout, stderr } = await tryCommand('systemd-analyze', ['verify', '--man=no', unit], {
        timeoutMs: LIMIT_MS,
      })
      assert.deepEqual({ code, text: stdout + stderr }, { code: 0, text: '' }, basename(path))
    }
  } finally {
    rmSync(folder, { recursive: true })
  }
})

test('no unit is more exposed than its work demands', { skip: whyNot }, async (t) => {
  for (const path of UNITS) {
    const threshold = EXPOSURE[basename(path)] ?? assert.fail(`${basename(path)} has no limit in this test`)
    const options = ['security', '--offline=true', '--no-pager', `--threshold=${String(threshold)}`, path]
    const { stdout } = await runCommand('systemd-analyze', options, { timeoutMs: LIMIT_MS })
    t.diagnostic(stdout.trim().split('\n').at(-1) ?? '')
  }
})

test('a unit that runs sandboxes leaves them running, and uses no mount namespace', () => {
  const privateMounts = /^(Protect(System|Home|Clock|ControlGroups|Hostname|Kernel\w+|Proc)|Private\w+|DynamicUser)=/m
  for (const path of UNITS.filter((unit) => basename(unit) !== 'sandyard-server.service')) {
    const text = readFileSync(path, 'utf8')
    assert.match(text, /^KillMode=process$/m)
    assert.match(text, /^Delegate=yes$/m)
    assert.doesNotMatch(text, privateMounts, `${basename(path)}: the next start would not see the mounts of sandboxes`)
  }
})

test('systemd waits as long as the program itself for sandboxes that drain or stop', () => {
  for (const path of UNITS.filter((unit) => basename(unit) !== 'sandyard-server.service'))
    assert.match(readFileSync(path, 'utf8'), /^TimeoutStopSec=infinity$/m, basename(path))
})

test('each unit starts a command that exists, reads a settings file that is packed, and names only settings that exist', async () => {
  const known = new Set(settingRows().map(([variable]) => variable))
  const commands = (await makeProgram([])).commands.map((command) => command.name())
  const names = new Set(FILES.map((path) => basename(path)))
  for (const path of UNITS) {
    const text = readFileSync(path, 'utf8')
    assert.ok(commands.includes(/^ExecStart=\/usr\/bin\/sandyard (\w+)$/m.exec(text)?.[1] ?? ''), basename(path))
    assert.ok(names.has(/^EnvironmentFile=-\/etc\/sandyard\/(.+)$/m.exec(text)?.[1] ?? ''), basename(path))
  }
  assertNone(
    FILES.flatMap((path) =>
      [...readFileSync(path, 'utf8').matchAll(/\b((?:SANDYARD|DATABASE)_\w+)=/g)]
        .filter(([, variable]) => !known.has(variable ?? ''))
        .map(([, variable]) => `${basename(path)}: ${String(variable)}`),
    ),
    'no such setting',
  )
})
