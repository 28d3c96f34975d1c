import assert from 'node:assert/strict'
import { after, before, describe, test } from 'node:test'
import { systemClock } from '../../src/lib/clock.ts'
import { findContainers, findContainersWithoutRun } from '../support/leftovers.ts'
import { DEMO_IMAGE, loadSdk, type Sdk } from '../support/sdk.ts'
import { startServer, TEST_WARM, whyNoServer, type RealServer } from '../support/server.ts'
import { TIMEOUT_FACTOR } from '../support/timeout-factor.ts'
import { waitUntil } from '../support/wait.ts'

// The lifecycle of a sandbox with the unmodified public SDK.

describe('the lifecycle of a sandbox with the SDK', { skip: whyNoServer() }, () => {
  let server: RealServer
  let sdk: Sdk

  before(async () => {
    server = await startServer()
    sdk = await loadSdk(server)
  })
  after(() => server.close())

  const builder = (name: string) => sdk.Sandbox.builder(name).image(DEMO_IMAGE)

  test('a created sandbox is found by its name and in the list, and runs', async () => {
    const box = await builder('found').create()
    const handle = await sdk.Sandbox.get('found')
    assert.equal(handle.status, 'running')
    assert.equal(handle.id, box.id)
    const page = await sdk.Sandbox.list()
    assert.ok(page.sandboxes.some(({ name }) => name === 'found'))
    await box.stop()
    await sdk.Sandbox.remove('found')
  })

  test('a missing sandbox and a taken name each give the SDK an error of its own type', async () => {
    await assert.rejects(sdk.Sandbox.get('never-made'), sdk.SandboxNotFoundError)
    await assert.rejects(sdk.Sandbox.remove('never-made'), sdk.SandboxNotFoundError)
    const box = await builder('taken').create()
    await assert.rejects(builder('taken').create(), sdk.SandboxAlreadyExistsError)
    await box.stop()
    await sdk.Sandbox.remove('taken')
  })

  test('a missing image fails the start, and the caller gets the reason', async () => {
    await assert.rejects(
      sdk.Sandbox.builder('no-image').image('localhost/not-made').create(),
      /failed to start.*localhost\/not-made/s,
    )
    await sdk.Sandbox.remove('no-image')
  })

  test('files survive a stop and start, and processes don’t', async () => {
    const box = await builder('kept').create()
    await box.shell('echo kept > /root/file; sleep 1000 > /dev/null 2>&1 &')
    await box.stop()
    const stopped = await sdk.Sandbox.get('kept')
    assert.equal(stopped.status, 'stopped')
    await assert.rejects(box.exec('true'))
    const again = await sdk.Sandbox.start('kept')
    assert.equal(again.id, box.id)
    assert.equal((await again.shell('cat /root/file; pgrep -x sleep')).stdout(), 'kept\n')
    const restarted = await again.restart()
    assert.equal((await restarted.shell('cat /root/file')).stdout(), 'kept\n')
    await (await sdk.Sandbox.get('kept')).destroy()
    await assert.rejects(sdk.Sandbox.get('kept'), sdk.SandboxNotFoundError)
  })

  test('a workload that ignores SIGTERM is stopped within the time that the client waits', async () => {
    const box = await builder('stubborn').cmd(['sh', '-c', 'trap "" TERM; while :; do sleep 1; done']).create()
    const from = systemClock.monotonicMs()
    await box.stop()
    assert.ok(systemClock.monotonicMs() - from < 9_000 * TIMEOUT_FACTOR)
    assert.equal((await sdk.Sandbox.get('stubborn')).status, 'stopped')
    await sdk.Sandbox.remove('stubborn')
  })

  test('a removed sandbox that ran leaves nothing on the machine, and its name is free at once', async () => {
    const box = await builder('gone').create()
    const runs = findContainers(server.dataDir)
    assert.ok(runs.length > 0, 'a running sandbox has a container')
    await sdk.Sandbox.remove('gone')
    const next = await builder('gone').create()
    assert.notEqual(next.id, box.id)
    await sdk.Sandbox.remove('gone')
    for (let left = runs; left.length > 0; await systemClock.sleep(20))
      left = findContainers(server.dataDir).filter((id) => runs.includes(id))
    const warm = findContainersWithoutRun(server.dataDir)
    assert.ok(warm.length <= TEST_WARM, `${String(warm.length)} containers have no run`)
  })

  test('a list can be filtered by labels, and the next page begins where the last one ended', async () => {
    const boxes = await Promise.all(
      [0, 1, 2, 3, 4].map((index) =>
        builder(`labelled-${String(index)}`)
          .label('app', 'web')
          .label('parity', index % 2 === 0 ? 'even' : 'odd')
          .create(),
      ),
    )
    const names: string[] = []
    for (let cursor: string | undefined, isFirst = true; isFirst || cursor !== undefined; isFirst = false) {
      const from = cursor
      const page = await sdk.Sandbox.listWith((list) => {
        const asked = list.limit(2).label('app', 'web')
        return from === undefined ? asked : asked.cursor(from)
      })
      assert.ok(page.sandboxes.length <= 2)
      names.push(...page.sandboxes.map(({ name }) => name))
      cursor = page.nextCursor
    }
    assert.deepEqual(
      names.toSorted(),
      [0, 1, 2, 3, 4].map((index) => `labelled-${String(index)}`),
    )
    const odd = await sdk.Sandbox.listWith((list) => list.labels({ app: 'web', parity: 'odd' }))
    assert.deepEqual(odd.sandboxes.map(({ name }) => name).toSorted(), ['labelled-1', 'labelled-3'])
    await Promise.all(boxes.map(({ name }) => sdk.Sandbox.remove(name)))
  })

  test('connectOrCreate creates a sandbox, connects to it while it runs, and starts it when it is stopped', async () => {
    const first = await builder('shared').connectOrCreate()
    await first.shell('echo once > /root/file')
    const second = await builder('shared').connectOrCreate()
    assert.equal(second.id, first.id)
    await second.stop()
    const third = await builder('shared').connectOrCreate()
    assert.equal(third.id, first.id)
    assert.equal((await third.shell('cat /root/file')).stdout(), 'once\n')
    await sdk.Sandbox.remove('shared')
  })

  test('environment, user and working folder also apply to a client that reconnects by name', async () => {
    await builder('settled').env('A', 'from sandbox').user('1000:1000').workdir('/var/tmp').create()
    const box = await (await sdk.Sandbox.get('settled')).connect()
    const output = await box.execWith('sh', (options) => options.args(['-c', 'echo $A $B; id -u']).env('B', 'mine'))
    assert.equal(output.stdout(), 'from sandbox mine\n1000\n')
    const own = await box.execWith('id', (options) => options.args(['-u']).user('0'))
    assert.equal(own.stdout(), '0\n')
    await sdk.Sandbox.remove('settled')
  })

  test('commands of the client that created a sandbox start in its working folder', async () => {
    const box = await builder('placed').workdir('/var/tmp').shell('/bin/bash').create()
    assert.equal((await box.exec('pwd')).stdout(), '/var/tmp\n')
    assert.equal((await box.shell('echo ${BASH_VERSION:+bash}')).stdout(), 'bash\n')
    await sdk.Sandbox.remove('placed')
  })

  test('an ephemeral sandbox shows its last status after its stop, then it is gone', async () => {
    const box = await builder('brief').ephemeral(true).create()
    await box.stop()
    assert.equal((await sdk.Sandbox.get('brief')).status, 'stopped')
    await waitUntilGone(sdk, 'brief', 10_000)
  })

  test('a sandbox with a maximum duration is stopped when it ends', async () => {
    const box = await builder('limited').maxDuration(1).create()
    const idle = await builder('idle').idleTimeout(1).create()
    const [ended] = await Promise.all([box.waitUntilStopped(), idle.waitUntilStopped()])
    assert.equal(ended.status, 'stopped')
    await Promise.all(['limited', 'idle'].map((name) => sdk.Sandbox.remove(name)))
  })

  test('a sandbox stops when its workload ends, whether the workload succeeds or fails', async () => {
    const well = await builder('ends-well').cmd(['sh', '-c', 'sleep 0.3']).create()
    assert.equal((await well.waitUntilStopped()).status, 'stopped')
    const badly = await builder('ends-badly').cmd(['sh', '-c', 'sleep 0.3; exit 9']).create()
    assert.equal((await badly.waitUntilStopped()).status, 'crashed')
    await Promise.all(['ends-well', 'ends-badly'].map((name) => sdk.Sandbox.remove(name)))
  })
})

async function waitUntilGone(sdk: Sdk, name: string, limitMs: number): Promise<void> {
  let isGone = false
  const look = async (): Promise<void> => {
    while (!isGone) {
      try {
        await sdk.Sandbox.get(name)
        await systemClock.sleep(50)
      } catch (error) {
        assert.ok(error instanceof sdk.SandboxNotFoundError, String(error))
        isGone = true
      }
    }
  }
  await Promise.all([look(), waitUntil(() => isGone, limitMs)])
}
