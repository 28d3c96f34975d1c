import assert from 'node:assert/strict'
import { after, before, describe, test } from 'node:test'
import { systemClock } from '../../src/lib/clock.ts'
import { randomBelow, systemRandom } from '../../src/lib/random.ts'
import { call, listAll, type SandboxBody } from '../support/api.ts'
import { noteFault } from '../support/reliability.ts'
import { startServer, whyNoServer, type RealServer } from '../support/server.ts'
import { DEMO_IMAGE } from '../support/sdk.ts'
import { waitUntil } from '../support/wait.ts'

// A client that doesn't know the outcome of its request repeats it with the same key, and the effect happens once.

const ROUNDS = Number(process.env['SANDYARD_CRASH_ROUNDS'] ?? '4')
/** The number of requests in flight when the server is killed. */
const REQUESTS = 24
const KILL_WITHIN_MS = 250
/** The time limit for a retry. A claim of the killed process lasts 10 s of it. */
const SERVED_WITHIN_MS = 60_000

describe('Idempotency-Key on a real server', { skip: whyNoServer() }, () => {
  let server: RealServer
  before(async () => {
    server = await startServer()
  })
  after(() => server.close())

  test('fifty concurrent creates with one key create one sandbox', async () => {
    const answers = await Promise.all(Array.from({ length: 50 }, () => create('the-same')))
    const ids = answers.map((body) => body?.id)
    assert.equal(new Set(ids).size, 1)
    assert.notEqual(ids[0], undefined)
    assert.deepEqual(
      (await listAll(server)).map(({ id }) => id),
      ids.slice(0, 1),
    )
  })

  test(`${String(ROUNDS)} times kill -9 during creates: each retry creates one sandbox and returns it`, async () => {
    const before = (await listAll(server)).length
    const made: string[] = []
    let unanswered = 0
    for (let round = 1; round <= ROUNDS; round++) {
      const keys = Array.from({ length: REQUESTS }, (_, index) => `round ${String(round)}, request ${String(index)}`)
      const first = keys.map((key) => tried(key))
      await systemClock.sleep(randomBelow(systemRandom, KILL_WITHIN_MS))
      await server.kill9()
      const answered = await Promise.all(first)
      await server.start()
      for (const [index, key] of keys.entries()) {
        const known = answered[index] ?? null
        if (known === null) unanswered += 1
        const body = await waitUntil(() => create(key).then((one) => one ?? undefined), SERVED_WITHIN_MS)
        if (known !== null) assert.equal(body.id, known.id, `${key} was acknowledged as another sandbox`)
        made.push(body.id)
      }
    }
    const listed = (await listAll(server)).map(({ id }) => id)
    assert.equal(new Set(made).size, ROUNDS * REQUESTS)
    assert.equal(listed.length, before + ROUNDS * REQUESTS, 'a sandbox was made that no key answers for')
    for (const id of made) assert.ok(listed.includes(id))
    noteFault({
      area: 'clients',
      fault: 'kill -9 of the server and its PostgreSQL under creates with an Idempotency-Key, each then retried',
      injected: ROUNDS,
      checked: `${String(made.length)} keys: one sandbox each, and the acknowledged one if there was an answer`,
      found: `${String(unanswered)} requests had no answer; ${String(listed.length - before)} sandboxes for ${String(made.length)} keys`,
    })
  })

  /**
   * Creates a sandbox with an idempotency key. Resolves with the sandbox, or with null while the claim of an
   * interrupted attempt lasts.
   */
  async function create(key: string): Promise<SandboxBody | null> {
    const body = { image: DEMO_IMAGE, resources: { vcpus: 1, memory_mib: 64, disk_size_mib: 64 } }
    const answer = await call(server, 'create_sandbox', { body, headers: { 'idempotency-key': key } })
    if (!answer.isRefusal) return answer.body
    assert.equal(answer.body.error.code, 'idempotency_key_in_use', answer.text)
    return null
  }

  /** Like `create`, but also resolves with null if the server dies before it answers. */
  async function tried(key: string): Promise<SandboxBody | null> {
    try {
      return await create(key)
    } catch (error) {
      if (error instanceof assert.AssertionError) throw error
      return null
    }
  }
})
