import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { existsSync, rmSync } from 'node:fs'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, test } from 'node:test'
import type { LogSource } from '../../../../src/contract/streams/log-protocol.ts'
import type { DesiredRun } from '../../../../src/contract/workers/worker-protocol.ts'
import type { RunId } from '../../../../src/domain/ids.ts'
import type { SandboxSpec } from '../../../../src/domain/spec/spec.ts'
import { makeLog } from '../../../../src/lib/log.ts'
import type { SandboxLogLevel } from '../../../../src/domain/spec/spec.ts'
import type { Driver } from '../../../../src/worker/drivers/driver.ts'
import type { SandboxLogs } from '../../../../src/worker/logs/logs.ts'
import { makeGuest } from '../../../support/container-guest.ts'
import { makeLauncher } from '../../../../src/worker/drivers/oci/run/runtime/launcher.ts'
import { loadPtyBinding } from '../../../../src/worker/drivers/oci/exec/pty-binding.ts'
import { UNLIMITED_SESSIONS } from '../../../support/container.ts'
import { connectAgent } from '../../../support/agent-client.ts'
import { EVERYTHING, makeTestLogs, readAll, textOf } from '../../../support/logs.ts'
import { makeOciFixture, whyNoOci, type OciFixture } from '../../../support/oci-driver.ts'
import { DEFAULT_SPEC_FOR_TESTS } from '../../../support/spec.ts'
import { waitUntil } from '../../../support/wait.ts'
import { makeDesiredRun } from '../../../support/desired-run.ts'
import { find } from '../conformance.ts'

const NEVER = new AbortController().signal
const WORKER = join(import.meta.dirname, '../../../support/oci-worker-process.ts')
const LIMIT_MS = 60_000
let fixture: OciFixture
let driver: Driver
let logs: SandboxLogs
let logsDir: string

describe('the log of a sandbox', { skip: whyNoOci() ?? false, timeout: 300_000 }, () => {
  beforeEach(async () => {
    ;({ logs, dir: logsDir } = await makeTestLogs())
    fixture = await makeOciFixture(undefined, undefined, logs)
    driver = await fixture.open({ readyAhead: 0 })
  })
  afterEach(async () => {
    for (const run of await driver.list()) await driver.remove(run.run_id)
    await driver.close()
    assert.deepEqual(await fixture.leftovers(), [])
    await fixture.remove()
    await logs.close()
    rmSync(logsDir, { recursive: true })
  })

  test('has the workload’s stdout and stderr separately while they are written, and the sandbox’s lifecycle events', async () => {
    const desired = shell('echo one; echo oops >&2; until [ -e /go ]; do sleep 0.05; done; echo two; exit 3')
    const seen: string[] = []
    await driver.start(desired, NEVER)
    const following = (async () => {
      const query = { ...EVERYTHING, follows: true }
      for await (const { source, text } of logs.read(desired.sandbox_id, query, NEVER)) seen.push(`${source}: ${text}`)
    })()
    await waitUntil(() => seen.includes('stdout: one\n') && seen.includes('stderr: oops\n'), LIMIT_MS)
    await fixture.exec(desired.run_id, ['touch', '/go'])
    await following
    assert.deepEqual(seen.filter((line) => line.startsWith('stdout')), ['stdout: one\n', 'stdout: two\n']) // prettier-ignore
    assert.deepEqual(await saidBy(desired, 'stderr'), 'oops\n')
    assert.equal(
      await saidBy(desired, 'system'),
      `image local/box was here already (sha256:${'0'.repeat(64)})\nstarted\nended with code 3\n`,
    )
    assert.equal(seen.at(-1), 'system: ended with code 3\n')
  })

  test('has all of a burst of 100,000 lines before the entry about the workload’s end', async () => {
    const desired = shell('seq 100000; echo done >&2')
    await driver.start(desired, NEVER)
    await untilEnded(desired.run_id)
    const lines = (await saidBy(desired, 'stdout')).split('\n')
    assert.deepEqual(lines, [...Array.from({ length: 100_000 }, (_, index) => String(index + 1)), ''])
    assert.equal(await saidBy(desired, 'stderr'), 'done\n')
  })

  for (const user of ['root', 'alice']) {
    test(`has what a program of user ${user} writes into its /dev/stdout and /dev/stderr`, async () => {
      const desired = shell('id -u; echo by name > /dev/stdout; echo badly >> /dev/stderr', { user })
      await driver.start(desired, NEVER)
      await untilEnded(desired.run_id)
      assert.equal(await saidBy(desired, 'stdout'), `${user === 'root' ? '0' : '1000'}\nby name\n`)
      assert.equal(await saidBy(desired, 'stderr'), 'badly\n')
    })
  }

  test('has the output of a program that became another user, or gave its output to that user', async () => {
    const become = 'setpriv --reuid 1000 --regid 1000 --clear-groups'
    const desired = shell(`${become} sh -c 'echo anew > /dev/stdout'; chown 1000:1000 /dev/stdout && echo given`)
    await driver.start(desired, NEVER)
    await untilEnded(desired.run_id)
    assert.equal(await saidBy(desired, 'stdout'), 'anew\ngiven\n', await saidBy(desired, 'stderr'))
  })

  test('stays within its limit while a workload writes without end, and the sandbox can be stopped', async () => {
    const desired = shell(
      'while :; do echo yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy; done & exec perl -e \'$| = 0; print "y\\n" while 1\'',
    )
    await driver.start(desired, NEVER)
    await waitUntil(async () => (await saidBy(desired, 'system')).includes('were not kept'), LIMIT_MS)
    await driver.stop(desired.run_id, 0)
    assert.match(await saidBy(desired, 'system'), /stop requested\n.*stopped\n$/s)
  })

  test('has the worker’s messages of the level that the sandbox asks for', async () => {
    const says = async (log_level: SandboxLogLevel): Promise<string> => {
      const desired = makeDesiredRun({ runtime: { ...DEFAULT_SPEC_FOR_TESTS.runtime, log_level } })
      await driver.start(desired, NEVER)
      await driver.stop(desired.run_id, 0)
      return await saidBy(desired, 'system')
    }
    assert.equal(await says('error'), '')
    assert.equal(await says('warn'), '')
    assert.match(await says('info'), /^image .*\nstarted\nstop requested\nstopped\n$/)
    assert.match(await says('trace'), /started\nphases of the start: .*(runtime|files) \d+ ms.*\nstop requested\n/)
  })

  test('says that memory ran out', async () => {
    const { resources } = DEFAULT_SPEC_FOR_TESTS
    const hungry = ['perl', '-e', 'my $x = "x" x (512 << 20); sleep 60']
    const desired = makeDesiredRun({
      resources: { ...resources, memory_mib: 64 },
      runtime: { ...DEFAULT_SPEC_FOR_TESTS.runtime, cmd: hungry },
    })
    await driver.start(desired, NEVER)
    await waitUntil(async () => (await saidBy(desired, 'system')).includes('\nout of memory: '), LIMIT_MS)
  })

  test('says why a start failed', async () => {
    const desired = makeDesiredRun({ image: 'strange/box' })
    await assert.rejects(driver.start(desired, NEVER))
    assert.equal(await saidBy(desired, 'system'), "start failed: no image 'strange/box'\n")
    assert.equal(logs.isLive(desired.sandbox_id), false)
  })

  test('has the output of commands, and that of a terminal as one stream', async () => {
    const desired = shell('sleep 1000')
    await driver.start(desired, NEVER)
    await driver.openChannel(desired.run_id)
    const guest = makeGuest(fixture.container(desired.run_id), {
      log: makeLog('silent'),
      sessions: UNLIMITED_SESSIONS,
      launcher: makeLauncher(makeLog('silent')),
      pty: loadPtyBinding(),
    })
    const client = connectAgent(guest, { deps: { capture: logs.writerOf(desired.sandbox_id) } })
    const script = { cmd: 'sh', args: ['-c', 'echo out; echo err >&2; printf unfinished'] }
    await client.finish(client.exec(script))
    assert.equal(await saidBy(desired, 'stdout'), 'out\nunfinished')
    assert.equal(await saidBy(desired, 'stderr'), 'err\n')
    await client.finish(client.exec({ ...script, tty: true }))
    assert.equal(await saidBy(desired, 'output'), 'out\r\nerr\r\nunfinished')
    await client.hangUp()
  })

  test('continues after the worker was killed, and loses no output of the time without a worker, even more than a pipe holds', async () => {
    const desired = shell('echo before; until [ -e /go ]; do sleep 0.05; done; seq 50000; echo last words; exit 4')
    await killWorker(desired, 'logged before')
    await fixture.exec(desired.run_id, ['touch', '/go'])
    await openAgain()
    const end = await untilEnded(desired.run_id)
    assert.deepEqual(end?.outcome, { kind: 'exited', code: 4 })
    await readBack(desired, 50_000)
  })

  test('has the last output of a workload that ended while no worker ran', async () => {
    const desired = shell('echo before; until [ -e /go ]; do sleep 0.05; done; seq 100; echo last words; exit 4')
    await killWorker(desired, 'logged before')
    await fixture.exec(desired.run_id, ['touch', '/go'])
    await waitUntil(() => existsSync(join(fixture.dir, 'state/exits', desired.run_id)), LIMIT_MS)
    await openAgain()
    await readBack(desired, 100)
    await waitUntil(async () => (await saidBy(desired, 'system')).endsWith('started\nended with code 4\n'), LIMIT_MS)
  })
})

/** Reads the log after a worker that shared its folder was killed. */
async function readBack(desired: DesiredRun, count: number): Promise<void> {
  const numbers = Array.from({ length: count }, (_, index) => `${String(index + 1)}\n`).join('')
  assert.equal(await saidBy(desired, 'stdout'), `before\n${numbers}last words\n`)
}

function shell(script: string, runtime: Partial<SandboxSpec['runtime']> = {}): DesiredRun {
  return makeDesiredRun({ runtime: { ...DEFAULT_SPEC_FOR_TESTS.runtime, cmd: ['sh', '-c', script], ...runtime } })
}

async function saidBy({ sandbox_id }: DesiredRun, source: LogSource): Promise<string> {
  return textOf(await readAll(logs, sandbox_id, { sources: [source] }))
}

function untilEnded(run: RunId) {
  return waitUntil(async () => {
    const seen = await find(driver, run)
    return seen?.phase === 'ended' && seen
  }, LIMIT_MS)
}

async function openAgain(): Promise<void> {
  ;({ logs } = await makeTestLogs({ dir: logsDir }))
  fixture = await makeOciFixture(fixture.dir, undefined, logs)
  driver = await fixture.open({ readyAhead: 0 })
}

/** Has another process start a run over the same folders, and kills it after one of its messages. */
async function killWorker(desired: DesiredRun, word: string): Promise<void> {
  await driver.close()
  await logs.close()
  const worker = spawn(process.execPath, [WORKER, fixture.dir, JSON.stringify(desired), logsDir], {
    stdio: ['ignore', 'pipe', 'inherit'],
  })
  let said = ''
  worker.stdout.on('data', (chunk: Buffer) => {
    said += chunk.toString()
  })
  await waitUntil(() => said.includes(word), LIMIT_MS)
  worker.kill('SIGKILL')
  await once(worker, 'exit')
}
