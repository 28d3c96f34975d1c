import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { createPreview, revokePreview } from '../../src/control/previews/previews.ts'
import { previewTopic } from '../../src/control/topics.ts'
import type { PreviewId } from '../../src/domain/ids.ts'
import { getPreview, makePreviewWorld, type PreviewWorld } from '../support/preview-world.ts'
import { makeTestClock, type TestClock } from '../support/test-clock.ts'
import { waitUntil } from '../support/wait.ts'

// Streams that are open through a preview, with a clock that the test advances.

let world: PreviewWorld

before(async () => {
  world = await makePreviewWorld((asked, response) => {
    response.writeHead(200).write('the stream begins')
    if (asked.url === '/short') response.end()
  })
})
after(() => world.close())

async function open(expires_at: Date | null): Promise<PreviewId> {
  const { deps, caller } = world.control
  const asked = { sandbox_id: world.box.id, port: 3000, access: 'public', expires_at } as const
  return (await createPreview(deps, caller, asked)).id
}

/** Revokes a preview. Resolves once this process was notified. */
async function revoke(id: PreviewId): Promise<void> {
  const { deps, caller } = world.control
  const notified = Promise.withResolvers<undefined>()
  const unsubscribe = deps.notifications.subscribe(previewTopic(world.box.id), () => {
    notified.resolve(undefined)
  })
  await revokePreview(deps, caller, { sandbox_id: world.box.id, id })
  await notified.promise
  unsubscribe()
}

/** Opens a stream. The returned function says whether it has ended. */
async function openStream(port: number): Promise<() => boolean> {
  const reply = await getPreview(port, '/', { host: world.host })
  assert.equal(reply.statusCode, 200)
  reply.on('error', () => undefined).resume() // it is cut off
  return () => reply.destroyed
}

/** Advances the clock once the watch of the only stream sleeps. */
async function advance(clock: TestClock, ms: number): Promise<void> {
  await waitUntil(() => clock.sleepers === 1)
  clock.advance(ms)
}

test('a stream ends when its preview expires', async () => {
  const start = new Date()
  const clock = makeTestClock(start)
  const id = await open(new Date(start.getTime() + 3_600_000))
  const hasEnded = await openStream(await world.openDoor({ clock }))
  await advance(clock, 500) // the first check
  await advance(clock, 3_599_000)
  await waitUntil(() => clock.sleepers === 1)
  assert.equal(hasEnded(), false)
  await advance(clock, 500)
  await waitUntil(hasEnded)
  await revoke(id)
})

test('a stream ends if its preview was revoked just before', async () => {
  const clock = makeTestClock(new Date())
  const id = await open(null)
  const port = await world.openDoor({ clock })
  await (await getPreview(port, '/short', { host: world.host })).resume().toArray()
  await waitUntil(() => clock.sleepers === 0)
  await revoke(id)
  const hasEnded = await openStream(port)
  await advance(clock, 500)
  await waitUntil(hasEnded)
})

test('a stream ends after a revocation, also if the database fails meanwhile', async () => {
  const clock = makeTestClock(new Date())
  const { db } = world.control.deps
  let isDown = false
  let failures = 0
  const failing: typeof db = {
    ...db,
    asSystem: (...asked) => {
      if (!isDown) return db.asSystem(...asked)
      failures += 1
      return Promise.reject(new Error('the database is down'))
    },
  }
  const id = await open(null)
  const hasEnded = await openStream(await world.openDoor({ clock, db: failing }))
  isDown = true
  await revoke(id)
  await waitUntil(() => failures === 1)
  isDown = false
  await advance(clock, 1_000)
  await waitUntil(hasEnded)
})
