import assert from 'node:assert/strict'
import { duplexPair } from 'node:stream'
import { text } from 'node:stream/consumers'
import { after, before, test } from 'node:test'
import { openChannelClient } from '../../src/channel-client/channel-client.ts'
import { listEvents } from '../../src/control/events/read-events.ts'
import { stopSandbox } from '../../src/control/sandboxes/stop-sandbox.ts'
import { asId, type SandboxId } from '../../src/domain/ids.ts'
import { systemClock } from '../../src/lib/clock.ts'
import { makePiecePacer } from '../../src/lib/turns/piece-pacer.ts'
import { makeLog } from '../../src/lib/log.ts'
import { serveChannel } from '../../src/worker/channel/serve-channel.ts'
import { behaviourByImage } from '../../src/worker/drivers/simulated-behaviour.ts'
import { makeSimulatedDriver } from '../../src/worker/drivers/simulated.ts'
import { makeSimulatedWorld } from '../../src/worker/drivers/simulated-world.ts'
import { makeNoLogs } from '../../src/worker/logs/logs.ts'
import { makeLocalGuest } from '../support/local-guest.ts'
import { makeWorkerWorld, type WorkerWorld } from '../support/worker-world.ts'
import { waitUntil } from '../support/wait.ts'

// The channel client on its whole way: permit, relay, a worker's connection, watch of the run, audit event.

const never = new AbortController().signal
let world: WorkerWorld
let stopWorker: () => Promise<void>
before(async () => {
  world = await makeWorkerWorld()
  const driver = makeSimulatedDriver({
    world: makeSimulatedWorld(),
    clock: systemClock,
    behaviourOf: behaviourByImage([]),
  })
  stopWorker = world.runWorker({ ...driver, openChannel: () => Promise.resolve(serve()) })
})
after(async () => {
  await stopWorker()
  await world.close()
})

function serve() {
  const [ours, theirs] = duplexPair()
  void serveChannel(theirs, makeLocalGuest(), {
    clock: systemClock,
    log: makeLog('silent'),
    limits: { sessions: 256 },
    pace: makePiecePacer().paceOf('org'),
    agentVersion: 'test',
    onActivity: () => undefined,
    onProcess: () => () => undefined,
    capture: makeNoLogs().writerOf(asId<SandboxId>('box')),
  })
  return ours
}

async function running() {
  const { id } = await world.create()
  await waitUntil(async () => (await world.statusOf(id)).status === 'running')
  return id
}

test('a client holds a permit and leaves an event, and the stop of the sandbox ends it with that reason', async () => {
  const { caller } = world.control
  const deps = { ...world.control.deps, pacer: makePiecePacer() }
  const id = await running()
  const client = await openChannelClient(deps, caller, id, never)
  const { stdout } = client.exec({ cmd: 'sh', args: ['-c', 'echo hi'], env: [], cwd: '/', user: null, tty: null })
  assert.equal(await text(stdout), 'hi\n')
  assert.equal(deps.channelLimit.permitsInUse, 1)
  const opened = {
    sandbox_id: id,
    event_type: 'sandbox_channel_opened',
    since: null,
    until: null,
    cursor: null,
    limit: 9,
  }
  assert.equal((await listEvents(deps, caller, opened)).items.length, 1)
  await stopSandbox(deps, caller, { id })
  assert.equal(await client.closed, 'sandbox_stopped')
  assert.equal(deps.channelLimit.permitsInUse, 0)
  await assert.rejects(openChannelClient(deps, caller, id, never), { code: 'invalid_state_transition' })
})

test('a client that is closed releases its permit, and one that is aborted before it is open leaves none', async () => {
  const { caller } = world.control
  const deps = { ...world.control.deps, pacer: makePiecePacer() }
  const id = await running()
  const client = await openChannelClient(deps, caller, id, never)
  client.close()
  assert.equal(await client.closed, 'client_done')
  assert.equal(deps.channelLimit.permitsInUse, 0)
  await assert.rejects(openChannelClient(deps, caller, id, AbortSignal.abort(new Error('gone'))), {
    code: 'unavailable',
  })
  assert.equal(deps.channelLimit.permitsInUse, 0)
})
