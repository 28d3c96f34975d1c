import assert from 'node:assert/strict'
import { after, afterEach, before, describe, test } from 'node:test'
import type { Driver } from '../../../../src/worker/drivers/driver.ts'
import type { LogWriter } from '../../../../src/worker/logs/logs.ts'
import type { RuntimeOptions, SandboxSpec } from '../../../../src/domain/spec/spec.ts'
import { makeMicroVmFixture, whyNoMicroVms, type MicroVmFixture } from '../../../support/microvm-driver.ts'
import { DEFAULT_SPEC_FOR_TESTS } from '../../../support/spec.ts'
import { waitUntil } from '../../../support/wait.ts'
import { makeDesiredRun } from '../../../support/desired-run.ts'
import { find } from '../conformance.ts'

/**
 * Tests of guarantees of this driver alone that need a real guest. The conformance suite tests those of all drivers.
 */
const whyNot = await whyNoMicroVms()
const NEVER = new AbortController().signal
const LONG_MS = 60_000

describe('a microVM', { skip: whyNot ?? false }, () => {
  let fixture: MicroVmFixture
  let driver: Driver
  let said = ''
  const writer: LogWriter = {
    openRun: () => undefined,
    closeRun: () => undefined,
    system: (text) => {
      said += `# ${text}\n`
    },
    stream: (source) => ({
      write: (data) => {
        said += `${source}: ${data.toString()}`
      },
      end: () => undefined,
    }),
  }

  before(async () => {
    fixture = await makeMicroVmFixture({ writerOf: () => writer })
    driver = await fixture.open()
  })
  afterEach(async () => {
    for (const { run_id } of await driver.list()) await driver.remove(run_id)
    for (const sandbox of await driver.listStored()) await driver.discard(sandbox)
    said = ''
  })
  after(async () => {
    await driver.close()
    await fixture.remove()
  })

  const running = (script: string, more: Partial<RuntimeOptions> = {}): Partial<SandboxSpec> => ({
    runtime: { ...DEFAULT_SPEC_FOR_TESTS.runtime, cmd: ['sh', '-c', script], ...more },
  })

  test('sends its workload SIGTERM and gives it time to end, and logs its output', async () => {
    const script = 'trap "echo ended; exit 0" TERM; echo up; echo bad >&2; while :; do sleep 0.2; done'
    const desired = makeDesiredRun(running(script))
    await driver.start(desired, NEVER)
    await waitUntil(() => said.includes('stdout: up\n') && said.includes('stderr: bad\n'), LONG_MS)
    await driver.stop(desired.run_id, LONG_MS)
    assert.match(said, /stdout: ended\n/)
    assert.match(said, /# stopped\n$/)
  })

  test('runs its workload as the user, in the folder and with the environment, hostname and script of its spec', async () => {
    const { runtime } = running('id -u; pwd; echo "$A"; hostname; hello', {
      user: '1000',
      workdir: '/srv/made',
      hostname: 'box',
      scripts: { hello: 'echo from the script' },
    })
    const patches = [{ type: 'text', path: '/etc/patched', content: 'x', mode: null, replace: false } as const]
    const desired = makeDesiredRun({
      ...(runtime === undefined ? {} : { runtime }),
      env: [{ key: 'A', value: '${B}' }],
      patches,
    })
    await driver.start(desired, NEVER)
    await waitUntil(async () => (await find(driver, desired.run_id))?.phase === 'ended', LONG_MS)
    await waitUntil(() => said.includes('# ended'), LONG_MS)
    const output = said.replaceAll('stdout: ', '').split('\n')
    assert.deepEqual(
      output.filter((line) => !line.startsWith('#') && line !== ''),
      ['1000', '/srv/made', '${B}', 'box', 'from the script'],
    )
    assert.deepEqual((await find(driver, desired.run_id))?.outcome, { kind: 'exited', code: 0 })
  })

  test('is reported out of memory when its workload takes more than it has', async () => {
    const desired = makeDesiredRun({
      ...running('a=$(printf %040000000d 0); while :; do i=$((i+1)); eval "v$i=\\$a"; done'),
      resources: { memory_mib: 256, vcpus: 1, disk_size_mib: null },
    })
    await driver.start(desired, NEVER)
    await waitUntil(async () => (await find(driver, desired.run_id))?.phase === 'ended', LONG_MS)
    assert.deepEqual((await find(driver, desired.run_id))?.outcome, { kind: 'out_of_memory' })
  })
})
