/** Process 1 of a container is the image's own init. */
import assert from 'node:assert/strict'
import { chmodSync, mkdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { after, before, describe, test } from 'node:test'
import type { DesiredRun } from '../../../../src/contract/workers/worker-protocol.ts'
import type { HandoffInit, SandboxSpec } from '../../../../src/domain/spec/spec.ts'
import type { Driver } from '../../../../src/worker/drivers/driver.ts'
import { makeDesiredRun } from '../../../support/desired-run.ts'
import { makeOciFixture, testRuntime, whyNoOci, type OciFixture } from '../../../support/oci-driver.ts'
import { DEFAULT_SPEC_FOR_TESTS } from '../../../support/spec.ts'
import { find, until } from '../conformance.ts'

const NEVER = new AbortController().signal
const LONG_MS = 60_000
const isGvisor = testRuntime() === 'runsc'
/** An init that halts when it is told to, and powers off by itself once `/tmp/off` exists. */
const INIT = `#!/bin/sh
trap 'echo halted >/halted; exit 0' 38
echo "init with $*"
while [ ! -e /tmp/off ]; do sleep 0.05; done
exit 7
`
let fixture: OciFixture
let driver: Driver

describe('the init of an image', { skip: whyNoOci() ?? false, timeout: 120_000 }, () => {
  before(async () => {
    fixture = await makeOciFixture()
    mkdirSync(join(fixture.layer, 'opt'), { recursive: true })
    for (const path of ['opt/init', 'init']) {
      writeFileSync(join(fixture.layer, path), INIT)
      chmodSync(join(fixture.layer, path), 0o755)
    }
    mkdirSync(join(fixture.layer, 'usr/lib/systemd'), { recursive: true })
    writeFileSync(join(fixture.layer, 'usr/lib/systemd/systemd'), INIT, { mode: 0o755 })
    driver = await fixture.open()
  })
  after(async () => {
    for (const run of await driver.list()) await driver.remove(run.run_id)
    await driver.close()
    assert.deepEqual(await fixture.leftovers(), [])
    await fixture.remove()
  })

  const init = (over: Partial<HandoffInit> = {}): HandoffInit => ({ cmd: '/opt/init', args: [], env: [], ...over })
  const start = async (spec: Partial<SandboxSpec> = {}, earlier?: DesiredRun): Promise<DesiredRun> => {
    const desired = makeDesiredRun({ init: init(), ...spec }, earlier?.sandbox_id)
    await driver.start(desired, NEVER)
    return desired
  }
  const inside = async ({ run_id }: DesiredRun, script: string): Promise<string> =>
    (await fixture.exec(run_id, ['sh', '-c', script])).stdout
  const ended = async ({ run_id }: DesiredRun): Promise<unknown> => {
    await until(async () => (await find(driver, run_id))?.phase === 'ended')
    return (await find(driver, run_id))?.outcome
  }
  const withCommand = (cmd: readonly string[]): Partial<SandboxSpec> => ({
    runtime: { ...DEFAULT_SPEC_FOR_TESTS.runtime, cmd },
  })

  test('is process 1 with its arguments and variables, commands run beside it, and a stop asks it to halt', async () => {
    const run = await start({
      init: init({ args: ['--flag'], env: [['MARK', 'x']] }),
      env: [{ key: 'MARK', value: 'y' }],
    })
    assert.match(await inside(run, 'tr "\\0" " " </proc/1/cmdline'), /\/opt\/init --flag/)
    const variables = (await inside(run, 'tr "\\0" "\\n" </proc/1/environ')).split('\n')
    assert.deepEqual(variables.filter((line) => /^(MARK|container|FROM_IMAGE)=/.test(line)).toSorted(), [
      'FROM_IMAGE=yes',
      'MARK=x',
      'container=oci',
    ])
    assert.equal(await inside(run, 'echo $MARK'), 'y\n')
    await driver.stop(run.run_id, LONG_MS)
    assert.deepEqual(await ended(run), { kind: 'stopped' })
    const again = await start({}, run)
    assert.equal(await inside(again, 'cat /halted'), 'halted\n')
    await driver.remove(again.run_id)
  })

  test('is killed after the grace if it does not halt', async () => {
    const run = await start({ init: init({ cmd: '/usr/bin/sleep', args: ['1000'] }) })
    await driver.stop(run.run_id, 50)
    assert.deepEqual(await ended(run), { kind: 'stopped' })
  })

  test('ends the sandbox when it powers off, also one that an earlier worker started', async () => {
    const run = await start()
    await driver.close()
    driver = await fixture.open()
    assert.equal((await find(driver, run.run_id))?.phase, 'running')
    await inside(run, 'touch /tmp/off')
    assert.deepEqual(await ended(run), { kind: 'exited', code: 7 })
  })

  test('starts with empty /run, /run/lock and /tmp, and files that nobody would see are refused', async () => {
    const run = await start()
    assert.equal(await inside(run, 'stat -f -c %T /run /run/lock /tmp'), 'tmpfs\ntmpfs\ntmpfs\n')
    await driver.remove(run.run_id)
    const patches = [{ type: 'mkdir', path: '/run/x', mode: 0o755 }] as unknown as SandboxSpec['patches']
    await assert.rejects(start({ patches }), /patches\[0\]: '\/run\/x' is in \/run, which is empty when an init starts/)
    const runtime = { ...DEFAULT_SPEC_FOR_TESTS.runtime, workdir: '/tmp/x' }
    await assert.rejects(start({ runtime }), /runtime\.workdir: '\/tmp\/x' is in \/tmp/)
  })

  test('is by `auto` the entrypoint of an image that is an init, or the first one that exists', async () => {
    fixture.image.config = { ...fixture.image.config, entrypoint: ['/init', 'given'] }
    try {
      const run = await start({ init: init({ cmd: 'auto', args: ['more'] }), ...withCommand(['sh', '-c', 'exit 3']) })
      assert.deepEqual(await ended(run), { kind: 'exited', code: 3 })
    } finally {
      fixture.image.config = { ...fixture.image.config, entrypoint: null }
    }
    const auto = { init: init({ cmd: 'auto' }) }
    if (isGvisor) await assert.rejects(start(auto), /init: systemd can't run with runsc/)
    else assert.match(await inside(await start(auto), 'tr "\\0" " " </proc/1/cmdline'), /\/usr\/lib\/systemd\/systemd/)
  })

  test('lets runtime.cmd run beside it, whose end ends the sandbox, whichever worker started it', async () => {
    const command = ['sh', '-c', 'tr "\\0" " " </proc/1/cmdline | grep -q /opt/init && id -u && exit 5']
    const run = await start({ runtime: { ...DEFAULT_SPEC_FOR_TESTS.runtime, cmd: command, user: '1000' } })
    assert.deepEqual(await ended(run), { kind: 'exited', code: 5 })
    const lasting = await start(withCommand(['sh', '-c', 'while [ ! -e /tmp/end ]; do sleep 0.05; done; exit 4']))
    await driver.close()
    driver = await fixture.open()
    await inside(lasting, 'touch /tmp/end')
    assert.deepEqual(await ended(lasting), { kind: 'exited', code: 4 })
    const other = await start(withCommand(['sleep', '1000']))
    await inside(other, 'touch /tmp/off')
    assert.deepEqual(await ended(other), { kind: 'exited', code: 7 })
    const killed = await start(withCommand(['sh', '-c', 'kill -9 $$']))
    assert.deepEqual(await ended(killed), { kind: 'signalled', signal: 'SIGKILL' })
  })

  test('fails the start with a reason if it does not exist', async () => {
    await assert.rejects(start({ init: init({ cmd: '/opt/none' }) }), {
      message: "the init can't be started: the program '/opt/none' was not found in the sandbox",
    })
  })
})
