import assert from 'node:assert/strict'
import { after, before, describe, test } from 'node:test'
import { systemClock } from '../../src/lib/clock.ts'
import { parseServerEvents } from '../../src/lib/streams/server-events.ts'
import { call, mustCall } from '../support/api.ts'
import { noteFault } from '../support/reliability.ts'
import { startReplicaWorld, type ReplicaProcess, type ReplicaWorld } from '../support/replica-world.ts'
import { whyNoServer } from '../support/server.ts'
import { waitUntil } from '../support/wait.ts'

// The stream of events of two server processes, of which one is killed.

const WRITERS = 6
/** How many events the client gets before each step of the fault. */
const PROGRESS = 200
const LIMIT_MS = 60_000

describe('the stream of events', { skip: whyNoServer() }, () => {
  let world: ReplicaWorld
  before(async () => {
    world = await startReplicaWorld(2)
  })
  after(() => world.close())
  const one = (index: number): ReplicaProcess => world.replicas[index] ?? assert.fail()

  test('misses and repeats nothing while a server process is killed and clients write through both', async () => {
    const done = new AbortController()
    const seen: string[] = []
    let connections = 0
    const reading = (async () => {
      let last: string | null = null
      while (!done.signal.aborted) {
        const server = one(connections++ % 2)
        try {
          const headers = { authorization: `Bearer ${server.key}`, ...(last === null ? {} : { 'last-event-id': last }) }
          const reply: Response = await fetch(`${server.url}/v1/events/stream?category=volume`, {
            headers,
            signal: done.signal,
          })
          assert.equal(reply.status, 200)
          assert.ok(reply.body)
          for await (const event of parseServerEvents(reply.body)) {
            last = event.id
            seen.push(JSON.parse(event.data).id)
          }
        } catch (error) {
          if (error instanceof assert.AssertionError) throw error
          if (last === null) throw error // it was never connected
          await systemClock.sleep(100) // the process was killed
        }
      }
    })()
    // The stream begins with what is recorded once it is open.
    await waitUntil(async () => {
      await mustCall(one(0), 'create_volume', {
        body: { name: `mark-${String(Math.round(systemClock.monotonicMs()))}` },
      })
      await systemClock.sleep(100)
      return seen.length > 0
    }, LIMIT_MS)
    const from = seen[0] ?? ''
    let stop = false
    const writing = Array.from({ length: WRITERS }, async (_, writer) => {
      for (let n = 0; !stop; n++) {
        const name = `v-${String(writer)}-${String(n)}`
        await call(one(writer % 2), 'create_volume', { body: { name } }).catch(() => null)
      }
    })
    const seeMore = (): Promise<boolean> => {
      const before = seen.length
      return waitUntil(() => seen.length >= before + PROGRESS, LIMIT_MS)
    }
    await seeMore()
    await one(0).kill9()
    await seeMore()
    await one(0).start()
    await seeMore()
    stop = true
    await Promise.all(writing)
    const { id } = Object((await call(one(1), 'create_volume', { body: { name: 'last' } })).body)
    assert.ok(id)
    const recorded = await world.rows<{ id: string }>(
      `SELECT id FROM events WHERE category = 'volume' AND id >= '${from}' ORDER BY id`,
    )
    await waitUntil(
      () => recorded.every((event) => seen.includes(event.id)),
      LIMIT_MS,
      () => `${String(seen.length)} of ${String(recorded.length)}`,
    )
    done.abort()
    await reading.catch(() => undefined)
    assert.equal(new Set(seen).size, seen.length, 'none twice')
    assert.deepEqual(
      seen.toSorted(),
      recorded.map((event) => event.id),
    )
    assert.ok(connections > 1)
    noteFault({
      area: 'replicas',
      fault: 'kill -9 of the server process of a stream of events, under load, then a start',
      injected: 1,
      checked: 'the client comes back with Last-Event-ID: every event once',
      found: `${String(seen.length)} events over ${String(connections)} connections`,
    })
  })

  test('ends when its key is revoked', async () => {
    const { key, id } = Object(
      (await call(one(1), 'create_api_key', { body: { name: 'short', scopes: ['read'] } })).body,
    )
    const reply = await fetch(`${one(1).url}/v1/events/stream`, { headers: { authorization: `Bearer ${String(key)}` } })
    const { body } = reply
    assert.ok(body)
    const reading = (async () => {
      for await (const event of parseServerEvents(body)) assert.ok(event)
    })()
    await mustCall(one(0), 'revoke_api_key', { params: { api_key_id: id } })
    await reading.catch(() => undefined) // it is cut off
  })
})
