import assert from 'node:assert/strict'
import { after, before, describe, test } from 'node:test'
import { RENEW_DEADLINE_MS, WORKER_LEASE_MS } from '../../src/domain/workers/lease.ts'
import { interruptibleSleep, systemClock } from '../../src/lib/clock.ts'
import { joinOnce } from '../../src/worker/agent/join.ts'
import { WORKER_PROTOCOL_VERSION } from '../../src/contract/workers/worker-protocol.ts'
import { call, mustCall, type SandboxBody } from '../support/api.ts'
import { makeFleetWorld, type FleetWorld } from '../support/fleet-world.ts'
import type { FleetWorker } from '../support/fleet-worker.ts'
import { runMsb } from '../support/msb.ts'
import { isInOwnNetwork } from '../support/own-network.ts'
import { noteFault } from '../support/reliability.ts'
import { DEMO_IMAGE } from '../support/sdk.ts'
import { readRows } from '../support/server-database.ts'
import { whyNoServer } from '../support/server.ts'
import { waitUntil } from '../support/wait.ts'

// Joined workers with real sandboxes, each in a network namespace. The tests cut their links, and freeze and kill
// processes.

const LIMIT_MS = 600_000
/** Long enough for the control plane to call a disconnected worker lost: a lease and 15 s. */
const LONG_CUT_MS = WORKER_LEASE_MS + 15_000
const BRIEF_CUT_MS = 4_000
const LOOK_MS = 150
/** The time that a busy machine may need until everything is as desired. */
const SETTLE_LIMIT_MS = 90_000

if (isInOwnNetwork(import.meta.filename, LIMIT_MS)) {
  describe('workers on other machines', { skip: whyNoServer() }, () => {
    let world: FleetWorld
    let steady: FleetWorker
    before(async () => {
      world = await makeFleetWorld()
      steady = await world.join('steady')
    })
    after(() => world.close())

    test('a machine joins with a token that works once, and sandboxes start there and answer a client', async () => {
      const { server } = world
      const box = await create('first')
      assert.deepEqual(await sandboxesOn(steady), [box.id])
      const { code, stdout, stderr } = await runMsb(server, ['exec', 'first', '--', 'echo', 'from far away'])
      assert.deepEqual({ code, stdout }, { code: 0, stdout: 'from far away\n' }, stderr)
      const token = await world.operate('token')
      const request = { protocol: WORKER_PROTOCOL_VERSION, token, name: 'guest', fallback_name: 'guest' }
      const never = new AbortController().signal
      const mine = { ...request, credential_sha256: 'a'.repeat(64) }
      const joined = await joinOnce(server.url, mine, never)
      assert.deepEqual(await joinOnce(server.url, mine, never), joined, 'an answer that was lost is given again')
      const other = { ...request, credential_sha256: 'b'.repeat(64) }
      await assert.rejects(joinOnce(server.url, other, never), /has been used/)
      const taken = { ...other, token: await world.operate('token'), name: 'steady' }
      await assert.rejects(joinOnce(server.url, taken, never), /a worker named 'steady' exists/)
      await assert.rejects(joinOnce(server.url, { ...other, token: `${token}x` }, never), /join token is incomplete/)
      await world.operate('remove', 'guest')
    })

    test('a draining worker gets no new runs and keeps its own, which are asked to stop at the deadline', async () => {
      await world.operate('drain', 'steady')
      await waitUntil(() => /draining: no new sandboxes/.test(steady.output()), 20_000)
      const waiting = await create('waits', 'accepted')
      const [first] = await sandboxesOn(steady)
      const reasonOf = async (id: string) => (await readSandbox(id)).body.status_reason
      await waitUntil(async () => (await reasonOf(waiting.id)) === 'insufficient_capacity', SETTLE_LIMIT_MS)
      assert.deepEqual(await sandboxesOn(steady), [first])
      assert.match(await world.refused('remove', 'steady'), /1 runs, the disks of 1 sandboxes \(first\)/)
      await world.operate('drain', 'steady', '--deadline', '1m')
      // The command accepts no deadline below a minute, so the test sets the deadline in the database.
      await readRows(world.server, `UPDATE workers SET drain_deadline_at = now() WHERE name = 'steady'`)
      await until('first', 'stopped')
      const events = await readRows<{ cause: string }>(
        world.server,
        `SELECT payload ->> 'cause' AS cause FROM events WHERE event_type = 'sandbox_stopped' AND payload ->> 'name' = 'first'`,
      )
      assert.deepEqual(events, [{ cause: 'drained' }])
      await world.operate('drain', 'steady', '--wait')
      await world.operate('resume', 'steady')
      await until('waits', 'running')
      assert.deepEqual(await sandboxesOn(steady), [waiting.id])
      await remove('waits', 'first')
    })

    test('however a worker loses its control plane, no sandbox runs twice, and each reaches its desired state', async () => {
      const names = ['brief', 'cut', 'deaf', 'mute', 'stopped', 'restarted', 'removed'] as const
      const workers = new Map<string, FleetWorker>([['steady', steady]])
      for (const name of names) workers.set(name, await world.join(name))
      const fleet = [...workers.values()]
      // Each sandbox requests all vCPUs of a worker, so one fits on each.
      for (const name of workers.keys()) await create(`box-${name}`, 'running', await vcpusOf(steady.name))
      const homes = new Map<string, SandboxOn>()
      for (const worker of fleet) {
        const [one, ...more] = await worker.running()
        assert.ok(one !== undefined && more.length === 0, `${worker.name} runs ${String(more.length + (one ? 1 : 0))}`)
        homes.set(worker.name, { ...one, worker })
      }
      const on = (name: string): SandboxOn => {
        const home = homes.get(name)
        assert.ok(home !== undefined)
        return home
      }
      await using watch = watchAll(fleet)

      const of = (name: string): FleetWorker => on(name).worker
      await of('restarted').kill9()
      await of('steady').kill9() // never started again
      of('stopped').signal('SIGSTOP')
      await Promise.all([
        of('restarted').start(),
        of('cut').cut('both'),
        of('deaf').cut('from-control'),
        of('mute').cut('from-worker'),
        of('removed').cut('both'),
        world.operate('remove', 'removed', '--force'),
        of('brief')
          .cut('both')
          .then(() => systemClock.sleep(BRIEF_CUT_MS))
          .then(() => of('brief').heal()),
        systemClock.sleep(LONG_CUT_MS),
      ])

      const lost = ['cut', 'deaf', 'mute', 'stopped', 'steady', 'removed']
      for (const name of lost) await untilStatus(on(name).sandbox, 'failed')
      const ended = await endedAt(lost.map((name) => on(name).sandbox))
      const found = new Map<string, string>([
        ['brief', 'the same process ran on'],
        ['restarted', 'the same process ran on'],
      ])
      for (const name of lost) {
        const { sandbox } = on(name)
        const lastSeen = watch.lastSeen.get(sandbox)
        const failedAt = ended.get(sandbox)
        assert.ok(lastSeen !== undefined && failedAt !== undefined)
        assert.ok(lastSeen < failedAt.at, `${name} still ran at ${lastSeen.toISOString()}, and was called lost before`)
        assert.match(failedAt.message, /^worker lost: /, name)
        const gapSecs = (failedAt.at.getTime() - lastSeen.getTime()) / 1000
        found.set(name, `killed ${gapSecs.toFixed(1)} s before it was called lost`)
      }
      for (const name of ['brief', 'restarted']) {
        const [one] = await of(name).running()
        assert.deepEqual([one?.run, one?.init], [on(name).run, on(name).init], `${name} runs as it did`)
      }

      of('stopped').signal('SIGCONT')
      await Promise.all(['cut', 'deaf', 'mute', 'removed'].map((name) => of(name).heal()))
      assert.equal(await of('removed').ended(), 3)
      assert.match(of('removed').output(), /the worker 'removed' was removed at .*its sandboxes are destroyed/)
      for (const name of ['cut', 'deaf', 'mute', 'stopped']) {
        await waitUntil(async () => (await stateOf(name)) === 'live', SETTLE_LIMIT_MS)
        if (name !== 'stopped') assert.match(of(name).output(), /can't be reached: [^]*answers again/)
        await start(on(name).sandbox)
      }
      await waitUntil(async () => (await homeOf(on('removed').sandbox)) === null, SETTLE_LIMIT_MS)
      await mustCall(world.server, 'stop_sandbox', { params: { sandbox_id: on('brief').sandbox } })
      await untilStatus(on('brief').sandbox, 'stopped')
      await start(on('removed').sandbox) // its disk is gone, so it starts with a new one on any worker with capacity
      for (const name of ['cut', 'deaf', 'mute', 'stopped', 'removed']) await untilStatus(on(name).sandbox, 'running')

      const seen = await watch.end()
      const wanted = await readRows<{ id: string }>(world.server, 'SELECT id FROM runs WHERE ended_at IS NULL')
      const running = (await Promise.all(fleet.map((worker) => worker.running()))).flat()
      assert.deepEqual(running.map(({ run }) => run).toSorted(), wanted.map(({ id }) => id).toSorted())
      assert.deepEqual(seen.doubles, [])
      const checked = `processes of all hosts every ${String(LOOK_MS)} ms: no sandbox on two, none left when it is called lost; at the end exactly those of the open runs`
      for (const [name, fault] of Object.entries(FAULTS))
        noteFault({
          area: 'workers',
          fault,
          injected: 1,
          checked,
          found: `${found.get(name) ?? ''}; none ran twice in ${String(seen.looks)} looks`,
        })

      of('cut').signal('SIGTERM') // with its settings, it stops its sandboxes
      assert.equal(await of('cut').ended(), 0)
      await untilStatus(on('cut').sandbox, 'stopped')
    })

    async function create(name: string, wait_for = 'running', vcpus = 1): Promise<SandboxBody> {
      const body = { name, image: DEMO_IMAGE, resources: { vcpus, memory_mib: 64, disk_size_mib: 64 } }
      const query = wait_for === 'running' ? { start: 'true', wait_for } : { start: 'true' }
      const made = await mustCall(world.server, 'create_sandbox', { query, body })
      if (wait_for === 'running') await untilStatus(made.id, 'running')
      return made
    }
    async function start(id: string): Promise<void> {
      const answer = await call(world.server, 'start_sandbox', { params: { sandbox_id: id } })
      assert.ok(!answer.isRefusal, answer.text)
    }
    async function remove(...names: readonly string[]): Promise<void> {
      for (const name of names) assert.equal((await runMsb(world.server, ['rm', '--force', name])).code, 0)
      await waitUntil(
        async () => (await readRows(world.server, 'SELECT id FROM runs WHERE ended_at IS NULL')).length === 0,
        SETTLE_LIMIT_MS,
      )
    }
    async function untilStatus(id: string, status: string): Promise<void> {
      let last = ''
      const ask = async (): Promise<boolean> => {
        const { body } = await readSandbox(id)
        last = `${body.status}: ${String(body.last_failure_message)}`
        return body.status === status
      }
      await waitUntil(ask, SETTLE_LIMIT_MS).catch((cause: unknown) => {
        throw new Error(`${id} is never ${status}, but ${last}`, { cause })
      })
    }
    async function readSandbox(id: string): Promise<{ readonly body: SandboxBody }> {
      return { body: await mustCall(world.server, 'get_sandbox', { params: { sandbox_id: id } }) }
    }
    async function until(name: string, status: string): Promise<void> {
      const { id } = await mustCall(world.server, 'get_sandbox_by_name', { params: { name } })
      await untilStatus(id, status)
    }
    async function stateOf(name: string): Promise<string | undefined> {
      return (await list()).find((worker) => worker.name === name)?.state
    }
    async function vcpusOf(name: string): Promise<number> {
      return (await list()).find((worker) => worker.name === name)?.vcpus ?? 1
    }
    async function list(): Promise<
      readonly { readonly name: string; readonly state: string; readonly vcpus: number }[]
    > {
      return JSON.parse(await world.operate('list', '--json'))
    }
    async function homeOf(id: string): Promise<string | null | undefined> {
      const sql = `SELECT home_worker_id::text AS home FROM sandboxes WHERE id = '${id}'`
      return (await readRows<{ home: string | null }>(world.server, sql))[0]?.home
    }
    async function endedAt(
      ids: readonly string[],
    ): Promise<ReadonlyMap<string, { readonly at: Date; readonly message: string }>> {
      const rows = await readRows<{ id: string; at: Date; message: string }>(
        world.server,
        `SELECT id::text, stopped_at AS at, last_failure_message AS message FROM sandboxes WHERE id IN (${ids.map((id) => `'${id}'`).join(', ')})`,
      )
      return new Map(rows.map(({ id, ...rest }) => [id, rest]))
    }
  })
}

type SandboxOn = { readonly sandbox: string; readonly run: string; readonly init: number; readonly worker: FleetWorker }

async function sandboxesOn(worker: FleetWorker): Promise<readonly string[]> {
  return (await worker.running()).map(({ sandbox }) => sandbox)
}

const FENCE = `${String(RENEW_DEADLINE_MS / 1000)} s`
const LEASE = `${String(WORKER_LEASE_MS / 1000)} s`
/** The fault that each worker gets, by its name. */
const FAULTS = {
  cut: `the link of a worker down for longer than its lease of ${LEASE}`,
  deaf: 'all that a control plane sends to a worker dropped for longer than the lease',
  mute: 'all that a worker sends dropped for longer than the lease',
  brief: `the link of a worker down for ${String(BRIEF_CUT_MS / 1000)} s, less than its fence of ${FENCE}`,
  stopped: 'SIGSTOP of a worker for longer than its lease',
  restarted: 'kill -9 of a worker that is started again at once',
  steady: 'kill -9 of a worker for good',
  removed: 'a worker removed by force while its link is down',
} as const

/** Reads the running processes of all hosts repeatedly, until `end`. */
function watchAll(workers: readonly FleetWorker[]) {
  const over = new AbortController()
  const lastSeen = new Map<string, Date>()
  const doubles: string[] = []
  let looks = 0
  const look = async (): Promise<void> => {
    const hosts = new Map<string, string>()
    for (const worker of workers) {
      for (const { sandbox } of await worker.running()) {
        const other = hosts.get(sandbox)
        if (other !== undefined) doubles.push(`${sandbox} on ${other} and ${worker.name}`)
        hosts.set(sandbox, worker.name)
        lastSeen.set(sandbox, systemClock.now())
      }
    }
    looks += 1
  }
  const keep = async (): Promise<void> => {
    while (!over.signal.aborted) {
      await look()
      await interruptibleSleep(systemClock, LOOK_MS, over.signal)
    }
  }
  const kept = keep()
  const end = async () => {
    over.abort()
    await kept
    return { looks, doubles }
  }
  return {
    lastSeen,
    end,
    async [Symbol.asyncDispose]() {
      await end()
    },
  }
}
